"""A decode step can be captured: nothing of it depends on what its tensors hold."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checkpoints import tiny_llama, tiny_qwen3
from octavo.engine.batch import Batch
from octavo.engine.models import load_model
from octavo.kernels.gpu import ops
from octavo.kernels.gpu.launch import Launch

META = torch.device("meta")
NUM_SEQS = 3


def decode_batch(width: int) -> Batch:
    """Rows without values: whoever asks one for its value gets an error."""

    def tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=META)

    return Batch(
        token_ids=tensor(NUM_SEQS, dtype=torch.int64),
        positions=tensor(NUM_SEQS, dtype=torch.int64),
        slot_mapping=tensor(NUM_SEQS, dtype=torch.int64),
        block_tables=tensor(NUM_SEQS, width, dtype=torch.int32),
        seq_lens=tensor(NUM_SEQS, dtype=torch.int32),
        query_start=tensor(NUM_SEQS + 1, dtype=torch.int32),
        num_decodes=NUM_SEQS,
        logit_rows=tensor(NUM_SEQS, dtype=torch.int64),
    )


@pytest.mark.parametrize("family", [tiny_llama, tiny_qwen3])
def test_a_decode_step_never_asks_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Callable[[Path], Path]
) -> None:
    launches: list[Launch] = []
    monkeypatch.setattr(Launch, "run", lambda launch: launches.append(launch))
    path = family(tmp_path / "model")
    model = load_model(path, dtype=torch.float32, device=META, kernels=ops)
    config = model.config
    shape = (8, config.num_layers, 2, config.num_kv_heads, 16, config.head_dim)
    logits = model.forward(decode_batch(width=128), torch.zeros(shape, device=META))
    assert logits.shape == (NUM_SEQS, config.vocab_size)
    # Rotation and store, attention and merge, two norms and an activation a layer; one norm more.
    names = [launch.kernel.__name__ for launch in launches]
    assert len(names) == 6 * config.num_layers + 1, names
    for launch in launches:
        assert launch.grid[0] == NUM_SEQS or "norm" in launch.kernel.__name__
