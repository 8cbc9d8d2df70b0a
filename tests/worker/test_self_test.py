"""A worker's engine is tested before anybody hears of it; one that computes wrong never serves."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import tiny_llama
from octavo.decode_worker.config import DecodeConfig
from octavo.engine.batch import Batch
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.load import Counters
from octavo.worker.self_test import SelfTestFailed, check_engine
from octavo.worker.start import load_engine


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


def engine_of(model: Path, **settings: object) -> Engine:
    return build_engine(
        EngineConfig(model=str(model), device="cpu", num_blocks=8, **settings)  # type: ignore[arg-type]
    )


class BrokenDecode:
    """A decode kernel that reads other blocks than it is told."""

    def __init__(self, engine: Engine) -> None:
        self._model = engine.runner._model  # type: ignore[attr-defined]
        engine.runner._model = self  # type: ignore[attr-defined]

    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        logits = self._model.forward(batch, kv)
        return logits.flip(-1) if batch.num_decodes else logits


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "float32", "quantization": "int4"},
        {"dtype": "float32", "block_size": 8},
        {"dtype": "float32", "max_model_len": 4},
        {"dtype": "float32", "max_model_len": 2},
    ],
)
def test_a_good_engine_passes_and_shows_no_trace(llama: Path, settings: dict[str, object]) -> None:
    engine = engine_of(llama, **settings)
    check_engine(engine)
    load = engine.scheduler.load()
    assert (load.running_sequences, load.waiting_sequences) == (0, 0)
    assert load.blocks.free == load.blocks.total, "nothing is held or cached"
    assert engine.counters() == Counters()


def test_paths_that_disagree_are_found(llama: Path) -> None:
    engine = engine_of(llama, dtype="float32")
    BrokenDecode(engine)
    with pytest.raises(SelfTestFailed, match="decoding gives token"):
        check_engine(engine)
    assert engine.scheduler.load().blocks.held == 0


def test_weights_that_are_no_numbers_never_serve(llama: Path, tmp_path: Path) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (weights,) = tmp_path.glob("*.safetensors")
    tensors = load_file(weights)
    next(iter(tensors.values())).fill_(float("nan"))
    save_file(tensors, weights, metadata={"format": "pt"})
    config = DecodeConfig(model=str(tmp_path), device="cpu", dtype="float32", num_blocks=8)
    interval_s = sys.getswitchinterval()
    try:
        with pytest.raises(SelfTestFailed, match="no usable output"):
            load_engine(config)  # before the worker listens or is announced
    finally:
        sys.setswitchinterval(interval_s)
