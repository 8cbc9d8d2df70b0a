from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checkpoints import tiny_llama
from octavo.checkpoint.config import load_config
from octavo.engine.step_budget import default_step_tokens, num_layer_parameters


@pytest.mark.parametrize(
    ("is_wide", "expected"), [(True, [512, 512, 32, 32]), (False, [512, 256, 32, 32])]
)
def test_a_larger_model_takes_fewer_tokens_a_step_on_a_cpu(
    is_wide: bool, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": is_wide})
    tiny = load_config(tiny_llama(tmp_path / "tiny"))
    smol = replace(tiny, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
                   num_kv_heads=3, head_dim=64)  # fmt: skip
    one_b = replace(tiny, hidden_size=2048, intermediate_size=8192, num_layers=16, num_heads=32,
                    num_kv_heads=8, head_dim=64)  # fmt: skip
    eight_b = replace(tiny, hidden_size=4096, intermediate_size=14336, num_layers=32,
                      num_heads=32, num_kv_heads=8, head_dim=128)  # fmt: skip
    assert 105e6 < num_layer_parameters(smol) < 107e6
    assert 6.9e9 < num_layer_parameters(eight_b) < 7.1e9
    cpu = torch.device("cpu")
    sizes = [default_step_tokens(config, cpu) for config in (tiny, smol, one_b, eight_b)]
    assert sizes == expected
    assert default_step_tokens(eight_b, torch.device("cuda")) == 8192
