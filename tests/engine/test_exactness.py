"""Greedy tokens equal those of `transformers`, seeded ones are the same in every situation."""

import random
from pathlib import Path

import pytest

from checkpoints import FAMILIES, Reference, reference_run, tiny_llama
from engine.tiny import GREEDY, make_sequence, run, tiny_engine
from octavo.sampling_params import SamplingParams

NEAR_TIE = 1e-4
BORDERS = [length for k in (1, 2, 3) for length in (16 * k - 1, 16 * k, 16 * k + 1)]
PREEMPTIONS = pytest.mark.parametrize("preemption", ["recompute", "swap"])
SAMPLED = [
    SamplingParams(seed=seed, temperature=0.9, top_p=0.95, max_tokens=24, ignore_eos=True)
    for seed in range(12)
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


def make_prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(3, 384) for _ in range(length)]


def assert_equal(token_ids: list[int], expected: Reference) -> None:
    """Token by token, up to a step where the reference itself is all but undecided."""
    for ours, theirs, margin in zip(token_ids, expected.token_ids, expected.margins, strict=True):
        if ours != theirs and margin < NEAR_TIE:
            return
        assert ours == theirs, f"{token_ids} != {expected.token_ids}, margin {margin}"


def expect(path: Path, prompt: list[int], num_tokens: int = GREEDY.max_tokens) -> Reference:
    return reference_run(path, prompt, num_tokens, ignore_eos=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact_cold_hot_and_batched(family: str, tmp_path: Path) -> None:
    path = FAMILIES[family](tmp_path / "model")
    prompts = [make_prompt(length) for length in (1, *BORDERS, 100)]
    expected = [expect(path, prompt) for prompt in prompts]
    engine = tiny_engine(path)
    cold = run(engine, [make_sequence(f"cold{i}", p) for i, p in enumerate(prompts)])
    hot = [make_sequence(f"hot{i}", p) for i, p in enumerate(prompts)]
    partial = [make_sequence(f"partial{i}", [*p, 5, 6]) for i, p in enumerate(prompts)]
    for seq, tokens, reference in zip(hot, cold, expected, strict=True):
        assert_equal(tokens, reference)
        assert_equal(run(engine, [seq])[0], reference)
        assert seq.num_cached_tokens == (seq.num_prompt_tokens - 1) // 16 * 16
    for seq in partial:
        assert_equal(run(engine, [seq])[0], expect(path, seq.token_ids[: seq.num_prompt_tokens]))
        assert seq.num_cached_tokens == seq.num_prompt_tokens // 16 * 16 or (
            seq.num_cached_tokens == (seq.num_prompt_tokens - 2) // 16 * 16
        )


def test_every_length_around_a_block_is_exact_and_cached_as_promised(llama: Path) -> None:
    """C02 and the cached counts of C01: each prompt three times, then one and 16 tokens longer."""
    engine = tiny_engine(llama)
    for length in range(1, 50):
        prompt = make_prompt(length)
        cached = []
        for attempt, extra in enumerate(([], [], [], [7], list(range(16)))):
            seq = make_sequence(f"{length}/{attempt}", prompt + extra)
            computed_before = engine.counters().prompt_tokens_computed
            (tokens,) = run(engine, [seq])
            if length % 5 == 0 or length in BORDERS:
                assert_equal(tokens, expect(llama, prompt + extra))
            assert engine.counters().prompt_tokens_computed > computed_before
            cached.append(seq.num_cached_tokens)
        assert cached[:3] == [0, (length - 1) // 16 * 16, (length - 1) // 16 * 16]
        assert min(cached[3:]) >= cached[1]
        assert all(count % 16 == 0 for count in cached)


@pytest.mark.parametrize("max_num_batched_tokens", [5, 16, 37])
def test_chunked_prompts_are_exact(llama: Path, max_num_batched_tokens: int) -> None:
    engine = tiny_engine(llama, max_num_batched_tokens=max_num_batched_tokens)
    prompts = [make_prompt(length, seed=1) for length in (3, 16, 33, 70)]
    outputs = run(engine, [make_sequence(str(i), p) for i, p in enumerate(prompts)])
    for prompt, tokens in zip(prompts, outputs, strict=True):
        assert_equal(tokens, expect(llama, prompt))


@PREEMPTIONS
def test_preempted_sequences_are_exact(llama: Path, preemption: str) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    engine = tiny_engine(llama, num_blocks=10, preemption=preemption)
    prompts = [make_prompt(length, seed=2) for length in (15, 16, 17, 30, 31)]
    seqs = [make_sequence(str(i), p, greedy) for i, p in enumerate(prompts)]
    outputs = run(engine, seqs)
    assert engine.counters().preemptions > 0
    assert (engine.counters().preemptions_swap > 0) == (preemption == "swap")
    for prompt, tokens in zip(prompts, outputs, strict=True):
        assert_equal(tokens, expect(llama, prompt, 24))


def test_a_seed_gives_the_same_tokens_alone_batched_preempted_and_restarted(llama: Path) -> None:
    prompts = [make_prompt(10 + i, seed=3) for i in range(len(SAMPLED))]
    alone = [
        run(tiny_engine(llama), [make_sequence("a", prompt, sampling)])[0]
        for prompt, sampling in zip(prompts, SAMPLED, strict=True)
    ]
    assert len({tuple(tokens) for tokens in alone}) == len(alone)

    def seqs() -> list:
        pairs = enumerate(zip(prompts, SAMPLED, strict=True))
        return [make_sequence(str(i), prompt, sampling) for i, (prompt, sampling) in pairs]

    assert run(tiny_engine(llama), seqs()) == alone
    for preemption in ("recompute", "swap"):
        small = tiny_engine(llama, num_blocks=9, max_num_batched_tokens=20, preemption=preemption)
        assert run(small, seqs()) == alone
        assert small.counters().preemptions > 0
    resumed = seqs()
    for seq, tokens in zip(resumed, alone, strict=True):
        seq.token_ids += tokens[:9]  # a later attempt of the same request
    assert run(tiny_engine(llama), resumed) == alone


def test_a_prompt_cancelled_in_prefill_leaves_nothing_wrong_behind(llama: Path) -> None:
    """C04: the same prompt, sent at once, is exact."""
    engine = tiny_engine(llama, max_num_batched_tokens=20)
    prompt = make_prompt(60, seed=4)
    engine.scheduler.add(make_sequence("a", prompt))
    engine.step()
    engine.scheduler.release("a")
    again = make_sequence("b", prompt)
    assert_equal(run(engine, [again])[0], expect(llama, prompt))
    assert again.num_cached_tokens == 16


def test_a_partly_equal_prompt_reuses_only_what_is_equal(llama: Path) -> None:
    """C04, in whole blocks."""
    engine = tiny_engine(llama)
    a, b, c = make_prompt(16), make_prompt(16, 1), make_prompt(16, 2)
    run(engine, [make_sequence("1", a + b)])
    run(engine, [make_sequence("2", a + b + c)])
    third = make_sequence("3", a + c + b)
    assert_equal(run(engine, [third])[0], expect(llama, a + c + b))
    assert third.num_cached_tokens == 16


def test_kv_that_another_engine_computed_continues_exactly(llama: Path) -> None:
    """Hand-over in one process: blocks read from one pool, written into the other's."""
    prefill, decode = tiny_engine(llama), tiny_engine(llama)
    prompt = make_prompt(37)
    leased = make_sequence(
        "p", prompt, SamplingParams(temperature=0.0, max_tokens=1), is_leased=True
    )
    prefill.scheduler.add(leased)
    _, computed = prefill.step()  # admitted, then computed
    pulled = make_sequence("d", prompt, is_pulled=True)
    decode.scheduler.add(pulled)
    (reserved,) = decode.step()
    prefill.kv_cache.zero_tail(computed.block_ids[2], 37 - 32)
    for source, target in zip(computed.block_ids, reserved.block_ids, strict=True):
        decode.kv_cache.write_block(target, prefill.kv_cache.read_block(source))
    decode.scheduler.end_pull("d")
    decode.scheduler.join("d", computed.token_ids[0])
    while decode.scheduler.has_work:
        decode.step()
    assert_equal(pulled.output_token_ids, expect(llama, prompt))
    prefill.scheduler.release("p")
    assert prefill.scheduler.pool.num_held == decode.scheduler.pool.num_held == 0
