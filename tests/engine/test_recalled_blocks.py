"""C08: prompts that were evicted, cached, swapped and recalled in any order never mix."""

import random
from pathlib import Path

import pytest

from checkpoints import tiny_llama
from engine.tiny import make_sequence, run, tiny_engine
from octavo.engine.sequence import Sequence
from octavo.sampling_params import SamplingParams

NUM_PROMPTS = 60
LONG = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SHARED = 16  # tokens that all begin with; what is behind them is each prompt's secret


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_every_prompt_is_answered_by_its_own_blocks(tmp_path: Path, preemption: str) -> None:
    """120 recalls, eight at a time, from a pool that holds half a dozen of the 60 prompts."""
    rng = random.Random(8)
    shared = [rng.randrange(3, 384) for _ in range(SHARED)]
    prompts = [
        shared + [rng.randrange(3, 384) for _ in range(rng.randrange(20, 70))]
        for _ in range(NUM_PROMPTS)
    ]
    llama = tiny_llama(tmp_path / "model")
    ample = tiny_engine(llama, num_blocks=1024)
    expected = run(ample, [make_sequence(str(i), p, LONG) for i, p in enumerate(prompts)])
    assert len({tuple(tokens) for tokens in expected}) > NUM_PROMPTS // 2
    small = tiny_engine(
        llama, num_blocks=30, preemption=preemption, swap_space_bytes=1 << 20, max_num_seqs=8
    )
    recalled: list[tuple[int, Sequence]] = []
    for number in range(2 * NUM_PROMPTS):
        index = rng.randrange(NUM_PROMPTS)
        recalled.append((index, make_sequence(f"r{number}", prompts[index], LONG)))
    found = run(small, [seq for _, seq in recalled])
    for (index, _), tokens in zip(recalled, found, strict=True):
        assert tokens == expected[index]
    counters = small.counters()
    assert counters.prompt_tokens_cached > 0 and counters.preemptions > 0
    assert (counters.preemptions_swap > 0) == (preemption == "swap")
