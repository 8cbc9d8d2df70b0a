"""Row operations give the same bits on one thread and on several."""

from collections.abc import Callable

import pytest
import torch

from octavo.kernels.cpu import ops
from octavo.kernels.cpu.team import HelperCore, Team

ROWS, SIZE = 700, 576


def norms(x: torch.Tensor) -> torch.Tensor:
    residual, weight = x.flip(0).contiguous(), x[0].clone()
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    return torch.stack([normed, total, ops.rms_norm(x, weight, 1e-5)])


def normed_heads(x: torch.Tensor) -> torch.Tensor:
    return ops.rms_norm(x.view(ROWS, -1, 64)[:, 2:5], x[0, :64].clone(), 1e-6)


def activated(x: torch.Tensor) -> torch.Tensor:
    return ops.silu_mul(x)


def rotated(x: torch.Tensor) -> torch.Tensor:
    heads, angles = x.clone().view(ROWS, -1, 64), torch.rand(ROWS, 32)
    ops.rotary(heads[:, :6], heads[:, 6:8], angles, angles.flip(0).contiguous())
    return heads


def stored(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(ROWS, -1, 64)
    layer = torch.zeros(ROWS // 16 + 1, 2, 3, 16, 64, dtype=x.dtype)
    ops.store_kv(heads[:, :3], heads[:, 3:6], layer, torch.randperm(ROWS))
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operation", [norms, normed_heads, activated, rotated, stored])
def test_any_number_of_threads_gives_the_same_bits(
    operation: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x = torch.randn(ROWS, SIZE).to(dtype)
    torch.manual_seed(1)
    alone = operation(x)
    for num_helpers in (1, 2, 3):
        team = Team([HelperCore()] * num_helpers)
        with team.at_work():
            for _ in range(3):
                torch.manual_seed(1)
                assert torch.equal(operation(x), alone)
        team.close()
