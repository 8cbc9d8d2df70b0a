"""Replayed decode steps give the bits of ordinary ones, and write nothing else."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from checkpoints import tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3
from engine.tiny import make_sequence, run, tiny_engine
from octavo.engine.batch import Batch
from octavo.engine.cores import AnyCore
from octavo.engine.engine import Engine
from octavo.engine.models import DecoderModel
from octavo.engine.models.recorded_step import RecordedModel
from octavo.engine.shared_prefixes import GroupPolicy
from octavo.kernels.cpu import ops
from octavo.kernels.cpu.panel_linear import PanelLinear
from octavo.kernels.cpu.team import HelperCore, Team
from octavo.kernels.select import Kernels
from octavo.sampling_params import SamplingParams

MAKERS = [tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3]
KINDS = [("float32", "int8"), ("bfloat16", "int4"), ("float32", None), ("bfloat16", None)]
NUM_BLOCKS, MAX_NUM_SEQS = 14, 5


def team_kernels() -> Kernels:
    """The CPU's kernels, whatever multiplies faster on this CPU."""
    names = [name for name in dir(Kernels) if not name.startswith("_")]
    operations = {name: getattr(ops, name) for name in names}
    return cast(Kernels, SimpleNamespace(**operations | {"pack_linear": PanelLinear}))


@dataclass
class TeamCores(AnyCore):
    """A team wherever the system puts it."""

    team: Team

    def at_work(self) -> AbstractContextManager[None]:
        return self.team.at_work()


@dataclass
class Watched:
    """Keeps what the model returned: logits by step."""

    inner: DecoderModel | RecordedModel
    logits: list[torch.Tensor] = field(default_factory=list)

    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        logits = self.inner.forward(batch, kv)
        self.logits.append(logits.clone())
        return logits


def ordinary(path: Path, kernels: Kernels | None = None, **settings: object) -> Engine:
    defaults: dict[str, object] = {
        "num_blocks": NUM_BLOCKS,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": 48,
        "preemption": "recompute",  # the same in both engines, whatever their speed
    }
    engine = tiny_engine(path, kernels or team_kernels(), **defaults | settings)
    engine.runner._model = Watched(engine.runner._model)  # type: ignore[attr-defined]
    return engine


def recorded(path: Path, kernels: Kernels | None = None, **settings: object) -> Engine:
    engine = ordinary(path, kernels, **settings)
    watched = watched_of(engine)
    assert isinstance(watched.inner, DecoderModel)
    limits = engine.scheduler.limits
    watched.inner = RecordedModel(
        watched.inner,
        engine.kv_cache.kv,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
    )
    return engine


def watched_of(engine: Engine) -> Watched:
    watched = engine.runner._model  # type: ignore[attr-defined]
    assert isinstance(watched, Watched)
    return watched


def num_replays(engine: Engine) -> int:
    model = watched_of(engine).inner
    assert isinstance(model, RecordedModel)
    return model.num_replays


def outputs(engine: Engine) -> list[list[int]]:
    """Sequences of unlike lengths, more than there is room for: some join late, some give way."""
    seqs = [
        make_sequence(
            f"s{i}",
            list(range(3 + i, 3 + i + length)),
            SamplingParams(temperature=0.0, max_tokens=40 + 9 * i, ignore_eos=True),
        )
        for i, length in enumerate([5, 16, 17, 40, 3, 1, 90])
    ]
    return run(engine, seqs)


def check_equal(engine: Engine, expected: Engine) -> None:
    """Two engines that did the same: every logit, every byte of the pool."""
    ours, theirs = watched_of(engine).logits, watched_of(expected).logits
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(engine.kv_cache.kv, expected.kv_cache.kv)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture
def helper() -> Iterator[TeamCores]:
    team = Team([HelperCore()])
    yield TeamCores(team)
    team.close()


@pytest.mark.parametrize(("dtype", "quantization"), KINDS)
@pytest.mark.parametrize("make", MAKERS)
def test_replayed_steps_have_the_bits_of_ordinary_ones(
    tmp_path: Path, make: Callable[[Path], Path], dtype: str, quantization: str | None
) -> None:
    path = make(tmp_path / "model")
    engines = [
        build(path, dtype=dtype, quantization=quantization) for build in (recorded, ordinary)
    ]
    ours, theirs = (outputs(engine) for engine in engines)
    assert ours == theirs
    check_equal(*engines)
    assert all(engine.scheduler.totals.preemptions > 0 for engine in engines)
    assert num_replays(engines[0]) > len(watched_of(engines[0]).logits) / 2


@pytest.mark.parametrize(("dtype", "quantization"), KINDS[:3])
def test_helpers_change_no_bit_of_a_replayed_step(
    llama: Path, helper: TeamCores, dtype: str, quantization: str | None
) -> None:
    engine = recorded(llama, dtype=dtype, quantization=quantization)
    engine.runner._cores = helper  # type: ignore[attr-defined]
    expected = ordinary(llama, dtype=dtype, quantization=quantization)
    assert outputs(engine) == outputs(expected)
    check_equal(engine, expected)
    assert num_replays(engine) > 0


def test_angles_that_depend_on_the_length_are_those_of_each_step(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    path = tiny_llama(tmp_path / "model", max_position_embeddings=128, rope_scaling=scaling)
    engines = [build(path, quantization="int8") for build in (recorded, ordinary)]
    prompt = list(range(3, 120))
    long = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    ours, theirs = (run(engine, [make_sequence("s", prompt, long)]) for engine in engines)
    assert ours == theirs and num_replays(engines[0]) == 7
    check_equal(*engines)


def test_prompts_and_groups_are_not_replayed(llama: Path) -> None:
    engine = recorded(llama, quantization="int8", num_blocks=64)
    prompt = list(range(3, 60))
    once = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    run(engine, [make_sequence("prompt", prompt, once)])
    engine.runner.policy = GroupPolicy()  # type: ignore[attr-defined]
    few = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    run(engine, [make_sequence(f"g{i}", [*prompt, i + 3], few) for i in range(3)])
    assert num_replays(engine) == 0


def test_a_model_with_products_that_are_no_kernels_runs_as_ever(llama: Path) -> None:
    def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> object:
        return lambda x: torch.nn.functional.linear(x, weight, bias)

    kernels = team_kernels()
    kernels.pack_linear = pack_linear  # type: ignore[method-assign, assignment]
    engine, expected = recorded(llama, kernels), ordinary(llama, kernels)
    assert outputs(engine) == outputs(expected)
    check_equal(engine, expected)
    assert num_replays(engine) == 0


def test_steps_of_all_sizes_share_their_memory(llama: Path) -> None:
    engine = recorded(llama, quantization="int8", num_blocks=64)
    model = watched_of(engine).inner
    assert isinstance(model, RecordedModel)
    outputs(engine)
    assert len(model._steps) == MAX_NUM_SEQS
    width = engine.model_config.vocab_size
    largest = 4 * MAX_NUM_SEQS * max(width, 2 * engine.model_config.intermediate_size)
    assert model._arena.num_bytes < 12 * largest


def test_recordings_end_with_their_model(llama: Path) -> None:
    engine = recorded(llama, quantization="int8")
    outputs(engine)
    model = watched_of(engine).inner
    assert isinstance(model, RecordedModel) and model._steps
    programs = [weakref.ref(step.program._args) for step in model._steps.values()]
    blocks = [
        weakref.ref(block.room) for found in model._arena._by_size.values() for block in found
    ]
    del engine, model
    gc.collect()
    assert all(reference() is None for reference in programs + blocks)
