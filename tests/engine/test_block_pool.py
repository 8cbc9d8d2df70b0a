"""The pool alone: allocation, reference counts, and the order of eviction."""

import pytest

from octavo.engine.block_pool import BlockCounts, BlockPool, OutOfBlocks


def test_allocation_takes_all_or_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="need 2 blocks, 1 of 4"):
        pool.allocate(2)
    assert pool.counts == BlockCounts(total=4, free=1, cached=0, held=3)


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    pool.touch(block_ids)
    pool.free(block_ids)
    assert pool.num_held == 1
    pool.free(block_ids)
    assert pool.num_held == 0


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    pool.free(block_ids)
    with pytest.raises(ValueError, match="freed twice"):
        pool.free(block_ids)


def test_a_free_block_without_a_name_cannot_be_shared() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="block 1 is free"):
        pool.touch([1])


def test_cached_blocks_are_evicted_last_and_tail_before_head() -> None:
    pool = BlockPool(5)
    evicted: list[int] = []
    pool.on_evict = evicted.append
    chain = pool.allocate(3)
    for block_id in chain:
        pool.name(block_id)
    pool.free(chain)
    assert pool.counts == BlockCounts(total=5, free=2, cached=3, held=0)
    pool.allocate(2)
    assert evicted == []
    pool.allocate(3)
    assert evicted == chain[::-1]


def test_a_touched_block_becomes_the_newest_again() -> None:
    pool = BlockPool(3)
    evicted: list[int] = []
    pool.on_evict = evicted.append
    first, second, third = pool.allocate(3)
    for block_id in (first, second, third):
        pool.name(block_id)
        pool.free([block_id])
    pool.touch([first])
    pool.free([first])
    pool.allocate(3)
    assert evicted == [second, third, first]


def test_a_forgotten_block_is_plainly_free() -> None:
    pool = BlockPool(2)
    (block_id,) = pool.allocate(1)
    pool.name(block_id)
    pool.free([block_id])
    pool.unname(block_id)
    assert pool.counts == BlockCounts(total=2, free=2, cached=0, held=0)
