"""Sequences that share a prefix give the tokens of `transformers` when it is read once for all."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from checkpoints import FAMILIES, Reference, reference_run, tiny_llama
from checkpoints.paged import reference_kernels
from engine.tiny import make_sequence, run, tiny_engine
from octavo.engine.engine import Engine
from octavo.engine.model_runner import ModelRunner
from octavo.engine.shared_prefixes import GroupPolicy
from octavo.kernels.prefix_groups import PrefixGroups
from octavo.kernels.select import Kernels, for_device
from octavo.sampling_params import SamplingParams

NEAR_TIE = 1e-4
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
EVERY = GroupPolicy()


class CountingKernels:
    """A device's kernels, noting the groups they are given."""

    def __init__(self, kernels: Kernels) -> None:
        self.seen: list[PrefixGroups] = []
        names = [name for name in dir(Kernels) if not name.startswith("_")]
        own = {name: getattr(kernels, name) for name in names}
        self._grouped = own["grouped_decode_attention"]
        own["grouped_decode_attention"] = self._note
        self.kernels = cast(Kernels, SimpleNamespace(**own))

    def _note(self, *arguments: object) -> torch.Tensor:
        self.seen += [a for a in arguments if isinstance(a, PrefixGroups)]
        result: torch.Tensor = self._grouped(*arguments)
        return result


@pytest.fixture(params=["reference", "cpu"])
def counting(request: pytest.FixtureRequest) -> CountingKernels:
    is_reference = request.param == "reference"
    return CountingKernels(reference_kernels() if is_reference else for_device(torch.device("cpu")))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


def grouping_engine(path: Path, counting: CountingKernels, **settings: object) -> Engine:
    engine = tiny_engine(path, counting.kernels, **settings)
    assert isinstance(engine.runner, ModelRunner)
    engine.runner.policy = EVERY
    return engine


def tokens(length: int, name: str) -> list[int]:
    rng = random.Random(f"{length}/{name}")
    return [rng.randrange(3, 384) for _ in range(length)]


def make_prompts() -> list[list[int]]:
    """Two prefixes side by side, one within another, and a prompt that shares nothing."""
    a, b, c = tokens(80, "a"), tokens(64, "b"), tokens(32, "c")
    prompts = [a + tokens(n, f"a{n}") for n in (1, 15, 16, 40)]
    prompts += [a + c + tokens(n, f"ac{n}") for n in (3, 20)]
    prompts += [b + tokens(n, f"b{n}") for n in (2, 17)]
    return [*prompts, tokens(50, "alone")]


def assert_equal(token_ids: list[int], expected: Reference) -> None:
    for ours, theirs, margin in zip(token_ids, expected.token_ids, expected.margins, strict=True):
        if ours != theirs and margin < NEAR_TIE:
            return
        assert ours == theirs, f"{token_ids} != {expected.token_ids}, margin {margin}"


def expect(path: Path, prompt: list[int]) -> Reference:
    return reference_run(path, prompt, GREEDY.max_tokens, ignore_eos=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact_in_groups_cold_and_hot(
    family: str, tmp_path: Path, counting: CountingKernels
) -> None:
    path = FAMILIES[family](tmp_path / "model")
    engine = grouping_engine(path, counting)
    prompts = make_prompts()
    expected = [expect(path, prompt) for prompt in prompts]
    for situation in ("cold", "prefix hit"):
        seqs = [make_sequence(f"{situation}{i}", p, GREEDY) for i, p in enumerate(prompts)]
        for output, reference in zip(run(engine, seqs), expected, strict=True):
            assert_equal(output, reference)
    if family == "mistral":  # a sliding window in every layer
        assert counting.seen == []
    else:
        assert max(len(groups.levels) for groups in counting.seen) == 3
        assert max(groups.num_levels for groups in counting.seen) == 2


def test_layers_with_a_window_and_layers_without_are_exact_together(
    tmp_path: Path, counting: CountingKernels
) -> None:
    path = FAMILIES["qwen3"](
        tmp_path / "model",
        use_sliding_window=True,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
    )
    prompts = make_prompts()
    seqs = [make_sequence(str(i), p, GREEDY) for i, p in enumerate(prompts)]
    for output, prompt in zip(run(grouping_engine(path, counting), seqs), prompts, strict=True):
        assert_equal(output, expect(path, prompt))
    assert counting.seen


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_members_that_are_preempted_and_come_back_are_exact(
    llama: Path, counting: CountingKernels, preemption: str
) -> None:
    engine = grouping_engine(llama, counting, num_blocks=15, preemption=preemption)
    prompts = make_prompts()
    seqs = [make_sequence(str(i), p, GREEDY) for i, p in enumerate(prompts)]
    for output, prompt in zip(run(engine, seqs), prompts, strict=True):
        assert_equal(output, expect(llama, prompt))
    assert engine.counters().preemptions > 0
    assert counting.seen


def test_a_seed_gives_the_same_tokens_alone_and_in_a_group(
    llama: Path, counting: CountingKernels
) -> None:
    prompts = make_prompts()
    samplings = [
        SamplingParams(seed=i, temperature=0.9, top_p=0.95, max_tokens=24, ignore_eos=True)
        for i in range(len(prompts))
    ]
    pairs = list(zip(prompts, samplings, strict=True))
    alone = [
        run(grouping_engine(llama, counting), [make_sequence("a", prompt, sampling)])[0]
        for prompt, sampling in pairs
    ]
    assert counting.seen == []
    together = [
        make_sequence(str(i), prompt, sampling) for i, (prompt, sampling) in enumerate(pairs)
    ]
    assert run(grouping_engine(llama, counting), together) == alone
    assert counting.seen
