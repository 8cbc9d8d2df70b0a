"""What can be found, under which conditions, and that a weak hash never lies."""

import random
from collections.abc import Sequence as Ids

import pytest

from engine.counting import GROUP, make_sequence
from octavo.block_key import BlockKey, block_key, root_key
from octavo.engine.block_pool import BlockPool
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.sequence import Sequence

ROOT = root_key(GROUP, "model")
B = 4


def weak_key(group: bytes, parent: BlockKey, token_ids: Ids[int]) -> BlockKey:
    """16 bits: collisions are a matter of course."""
    return BlockKey(block_key(group, parent, token_ids)[:2])


def make_cache(num_blocks: int = 16, **fields: object) -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(num_blocks)
    return pool, PrefixCache(pool, B, **fields)  # type: ignore[arg-type]


def computed(pool: BlockPool, token_ids: list[int], group: bytes = GROUP) -> Sequence:
    """A sequence whose whole KV lies in fresh blocks, not registered yet."""
    seq = make_sequence("s", token_ids)
    seq.group_key, seq.root_key = group, ROOT
    seq.add_blocks(pool.allocate(-(-len(token_ids) // B)))
    seq.num_computed_tokens = len(token_ids)
    return seq


def match(cache: PrefixCache, token_ids: list[int], group: bytes = GROUP) -> list[int]:
    return cache.match(group, ROOT, token_ids, len(token_ids) // B)


def test_full_blocks_are_found_and_a_partial_one_is_not() -> None:
    pool, cache = make_cache()
    seq = computed(pool, list(range(10)))
    assert cache.commit(seq) == []
    assert match(cache, list(range(12))) == seq.block_ids[:2]
    assert cache.match(GROUP, ROOT, list(range(12)), 1) == seq.block_ids[:1]


def test_a_partly_equal_block_is_no_hit_and_ends_the_walk() -> None:
    pool, cache = make_cache()
    seq = computed(pool, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    cache.commit(seq)
    assert match(cache, [0, 0, 0, 0, 1, 1, 1, 9, 2, 2, 2, 2]) == seq.block_ids[:1]


def test_equal_blocks_under_another_parent_are_no_hit() -> None:
    pool, cache = make_cache()
    cache.commit(computed(pool, [0] * 4 + [7] * 4))
    cache.commit(computed(pool, [1] * 4))
    assert len(match(cache, [1] * 4 + [7] * 4)) == 1


def test_another_group_finds_nothing() -> None:
    pool, cache = make_cache()
    cache.commit(computed(pool, [0] * 8))
    assert match(cache, [0] * 8, b"h" * 32) == []


def test_a_duplicate_leaves_the_table_for_the_block_that_was_first() -> None:
    pool, cache = make_cache()
    first, second = computed(pool, [0] * 8), computed(pool, [0] * 8)
    cache.commit(first)
    own = list(second.block_ids)
    assert cache.commit(second) == own
    assert second.block_ids == first.block_ids
    assert [pool.num_owners(block_id) for block_id in first.block_ids] == [2, 2]
    pool.free(own)
    assert pool.num_held == 2


def test_a_block_is_registered_only_if_its_parent_is() -> None:
    """Here every key collides, so the first block cannot be registered, nor then the second."""
    pool, cache = make_cache(key_function=lambda group, parent, ids: BlockKey(b"same"))
    cache.commit(computed(pool, [5] * 4))
    seq = computed(pool, [6] * 8)
    cache.commit(seq)
    assert seq.num_registered_blocks == 0
    assert cache.num_collisions == 1
    assert match(cache, [6] * 8) == []
    assert len(cache) == 1


def test_an_orphan_gives_way_to_a_block_that_can_be_found() -> None:
    pool, cache = make_cache(num_blocks=4)
    seq = computed(pool, [0] * 4 + [1] * 4)
    cache.commit(seq)
    parent, child = seq.block_ids
    pool.free([parent])  # the child stays held, as by a copy that goes on after a release
    pool.free(pool.allocate(3))  # evicts the parent
    again = computed(pool, [0] * 4 + [1] * 4)
    assert match(cache, again.token_ids) == []
    cache.commit(again)
    assert match(cache, again.token_ids) == again.block_ids
    assert child not in again.block_ids
    assert cache.num_collisions == 0


def test_events_name_each_change_once_and_the_last_one_counts() -> None:
    pool, cache = make_cache(num_blocks=2)
    seq = computed(pool, [0] * 8)
    cache.commit(seq)
    keys = seq.block_keys[:2]
    assert cache.drain_events() == (keys, [])
    assert cache.drain_events() == ([], [])
    assert sorted(cache.keys()) == sorted(keys)
    pool.free(seq.take_blocks())
    pool.allocate(1)
    assert cache.drain_events() == ([], [keys[1]])
    assert cache.keys() == [keys[0]]


def test_a_hash_cut_to_16_bits_never_gives_another_prompts_blocks() -> None:
    """10,000 random prompts of 4 blocks, twice (C05): a hit must be the prompt's own KV."""
    pool, cache = make_cache(num_blocks=8192, key_function=weak_key)
    content: dict[int, tuple[int, ...]] = {}  # what a block's KV was computed from
    rng = random.Random(7)
    prompts = [[rng.randrange(50) for _ in range(4 * B)] for _ in range(10_000)]
    num_hits = 0
    for prompt in prompts * 2:
        hit = match(cache, prompt)
        num_hits += len(hit)
        for index, block_id in enumerate(hit):
            assert content[block_id] == tuple(prompt[: (index + 1) * B])
        pool.touch(hit)
        seq = make_sequence("s", prompt)
        seq.root_key = ROOT
        seq.add_blocks(hit + pool.allocate(4 - len(hit)))
        seq.num_registered_blocks, seq.num_computed_tokens = len(hit), len(prompt)
        for index in range(len(hit), 4):
            content[seq.block_ids[index]] = tuple(prompt[: (index + 1) * B])
        pool.free(cache.commit(seq))
        pool.free(seq.take_blocks())
    assert cache.num_collisions > 0
    assert pool.num_held == 0


@pytest.mark.parametrize("seed", range(4))
def test_100_000_random_operations_leave_every_count_where_it_was(seed: int) -> None:
    """Pool and cache under a vocabulary of 2: nearly every prefix is shared (four seeds of 25k)."""
    rng = random.Random(seed)
    pool, cache = make_cache(num_blocks=24)
    held: list[Sequence] = []
    for _ in range(25_000):
        operation = rng.random()
        if operation < 0.4:
            admit(pool, cache, held, [rng.randrange(2) for _ in range(rng.randrange(1, 25))])
        elif held and operation < 0.7:
            grow(pool, cache, rng.choice(held), rng.randrange(2))
        elif held:
            pool.free(held.pop(rng.randrange(len(held))).take_blocks())
        counts = pool.counts
        assert counts.free + counts.cached + counts.held == counts.total == 24
        assert counts.held == len({block_id for seq in held for block_id in seq.block_ids})
        assert len(cache) >= counts.cached
    for seq in held:
        pool.free(seq.take_blocks())
    assert pool.num_free == 24
    assert all(pool.num_owners(block_id) == 0 for block_id in range(24))
    pool.allocate(24)
    assert len(cache) == 0


def admit(pool: BlockPool, cache: PrefixCache, held: list[Sequence], token_ids: list[int]) -> None:
    hit = match(cache, token_ids)
    num_new = -(-len(token_ids) // B) - len(hit)
    if num_new + pool.count_idle(hit) > pool.num_free:
        return
    pool.touch(hit)
    new = pool.allocate(num_new)
    others = {block_id for seq in held for block_id in seq.block_ids}
    assert len(set(new)) == len(new) and not others & set(new), "a block with two owners"
    seq = make_sequence("s", token_ids)
    seq.root_key = ROOT
    seq.add_blocks(hit + new)
    seq.num_registered_blocks, seq.num_computed_tokens = len(hit), len(token_ids)
    pool.free(cache.commit(seq))
    held.append(seq)


def grow(pool: BlockPool, cache: PrefixCache, seq: Sequence, token_id: int) -> None:
    if seq.num_computed_tokens == len(seq.block_ids) * B:
        if pool.num_free == 0:
            return
        seq.add_blocks(pool.allocate(1))
    seq.token_ids.append(token_id)
    seq.num_computed_tokens += 1
    pool.free(cache.commit(seq))
