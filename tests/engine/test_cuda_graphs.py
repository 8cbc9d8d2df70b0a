"""Decode steps replayed at padded sizes give what the model gives, and write nothing more."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from checkpoints import tiny_llama
from engine.tiny import make_sequence, run, tiny_engine
from octavo.engine.batch import Batch
from octavo.engine.cuda_graphs import GraphedModel, batch_sizes, table_widths
from octavo.engine.engine import Engine
from octavo.engine.shared_prefixes import GroupPolicy
from octavo.sampling_params import SamplingParams

MAX_NUM_SEQS, NUM_BLOCKS = 6, 256


@dataclass
class Call:
    """Stands in for a graph: does again what was recorded, on the same fixed tensors."""

    run: Callable[[], None]
    num_replays: int = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.run()


@dataclass
class CallRecorder:
    """Records calls as CUDA does: it runs them once before and remembers them."""

    room: int = 1000
    calls: list[Call] = field(default_factory=list)

    def has_room(self) -> bool:
        return len(self.calls) < self.room

    def record(self, call: Callable[[], None]) -> Call:
        call()
        self.calls.append(Call(call))
        return self.calls[-1]


@dataclass
class CountingModel:
    """Counts the rows of the steps that reach the model."""

    inner: object
    sizes: list[int] = field(default_factory=list)

    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(batch.token_ids))
        logits = self.inner.forward(batch, kv)  # type: ignore[attr-defined]
        assert isinstance(logits, torch.Tensor)
        return logits


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


def graphed(engine: Engine, recorder: CallRecorder) -> tuple[GraphedModel, CountingModel]:
    """Put graphs around an engine's model."""
    runner = engine.runner
    counting = CountingModel(runner._model)  # type: ignore[attr-defined]
    model = GraphedModel(
        counting,
        engine.kv_cache.kv,
        recorder,
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=engine.max_model_len,
        vocab_size=engine.model_config.vocab_size,
        dtype=torch.float32,
    )
    runner._model = model  # type: ignore[attr-defined]
    return model, counting


def outputs(engine: Engine) -> list[list[int]]:
    """Sequences of unlike lengths: steps of 5 down to 1 rows, mixed with late prompts."""
    seqs = [
        make_sequence(
            f"s{i}",
            list(range(3 + i, 3 + i + length)),
            SamplingParams(temperature=0.0, max_tokens=4 + 3 * i, ignore_eos=True),
        )
        for i, length in enumerate([5, 16, 17, 40, 3, 1, 90])
    ]
    return run(engine, seqs)


def small_engine(path: Path) -> Engine:
    return tiny_engine(path, num_blocks=NUM_BLOCKS, max_num_seqs=5, max_num_batched_tokens=48)


def test_padded_steps_give_the_same_tokens(llama: Path) -> None:
    expected = outputs(small_engine(llama))
    engine, recorder = small_engine(llama), CallRecorder()
    graphed(engine, recorder)
    assert outputs(engine) == expected
    num_replays = [call.num_replays for call in recorder.calls]
    assert len(num_replays) <= len(batch_sizes(MAX_NUM_SEQS)) and sum(num_replays) > 10


def test_rows_of_padding_write_nothing(llama: Path) -> None:
    engine = small_engine(llama)
    model, _ = graphed(engine, CallRecorder())
    assert model.record_ahead(60.0) == len(batch_sizes(MAX_NUM_SEQS))
    assert not engine.kv_cache.kv.any()
    outputs(engine)
    plain = small_engine(llama)
    outputs(plain)
    torch.testing.assert_close(engine.kv_cache.kv, plain.kv_cache.kv)


def test_without_room_steps_run_kernel_by_kernel(llama: Path) -> None:
    engine, recorder = small_engine(llama), CallRecorder(room=1)
    _, counting = graphed(engine, recorder)
    expected = outputs(small_engine(llama))
    assert outputs(engine) == expected
    assert len(recorder.calls) == 1 and {1, 2, 3} < set(counting.sizes)


def test_prompts_and_groups_are_not_replayed(llama: Path) -> None:
    engine, recorder = small_engine(llama), CallRecorder()
    graphed(engine, recorder)
    prompt = list(range(3, 60))
    once = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    run(engine, [make_sequence("prompt", prompt, once)])
    assert not recorder.calls
    engine.runner.policy = GroupPolicy()  # type: ignore[attr-defined]
    few = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    run(engine, [make_sequence(f"g{i}", [*prompt, i + 3], few) for i in range(3)])
    assert not recorder.calls


def test_the_ladders_end_at_the_largest() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(6) == [1, 2, 4, 6]
    assert batch_sizes(150) == [1, 2, 4, 8, 16, 32, 64, 96, 128, 150]
    assert table_widths(4, 16) == [4]
    assert table_widths(1000, 16) == [128, 512, 1000]
