"""The scripted checkpoint follows its table, in Octavo as in `transformers`, in every dtype."""

from pathlib import Path

import pytest
import torch

from checkpoints import reference_generate, scripted
from checkpoints.paged import PagedPool, PagedSequence, reference_kernels
from octavo.engine.models import load_model

TABLE = {5: 6, 6: 7, 7: 300, 300: 5, 9: 5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_next_token_is_the_table_entry_of_the_last(tmp_path: Path, dtype: torch.dtype) -> None:
    path = scripted(tmp_path / "model", TABLE)
    device = torch.device("cpu")
    model = load_model(path, dtype=dtype, device=device, kernels=reference_kernels())
    pool, sequence = PagedPool(model, dtype), PagedSequence()
    output = [int(pool.step([(sequence, [1, 2, 9])], logit_rows=[2]).argmax())]
    for _ in range(6):
        output.append(int(pool.step([(sequence, output[-1:])], num_decodes=1).argmax()))
    assert output == [5, 6, 7, 300, 5, 6, 7]
    assert reference_generate(path, [1, 2, 9], 7, dtype) == output


def test_a_token_without_an_entry_ends_the_sequence(tmp_path: Path) -> None:
    path = scripted(tmp_path / "model", {5: 6})
    assert reference_generate(path, [5], 10) == [6, 2]
