"""Where the Triton kernels are tested: on the GPU when there is one, else in Triton's interpreter.

The variable must stand before octavo.kernels.gpu is imported, and this file is read before the
test modules beside it. In the interpreter a program costs 5-10 ms: keep the grids small.
"""

import os
from collections.abc import Callable, Sequence

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

real_empty = torch.empty


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def new_memory_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel forgets to write, or reads before it is written, shows."""

    def empty(*args: object, **kwargs: object) -> torch.Tensor:
        tensor: torch.Tensor = real_empty(*args, **kwargs)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", empty)


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Every row (last dimension) lies within its dtype's relative error of a float64 result;
    `times` that, where a kernel rounds more than once: Triton's interpreter cuts bfloat16 off."""
    bounds = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

    def check(actual: torch.Tensor, expected: torch.Tensor, times: int = 1) -> None:
        assert expected.dtype == torch.float64 and actual.shape == expected.shape
        difference = (actual.cpu().double() - expected).norm(dim=-1)
        error = (difference / expected.norm(dim=-1).clamp(min=1e-3)).max().item()
        assert error <= times * bounds[actual.dtype], f"relative error {error} in {actual.dtype}"

    return check


@pytest.fixture
def paged_kv(
    device: torch.device,
) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Builds (kv_layer, block_tables, seq_lens) of random KV in shuffled blocks: one layer's view
    of a pool in which every other number (spare slots, spare blocks, other layers) is NaN."""

    def build(
        seq_lens: Sequence[int],
        num_kv_heads: int = 2,
        head_dim: int = 64,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        needed = [-(-length // block_size) for length in seq_lens]
        pool = torch.full(
            (sum(needed) + 2, 3, 2, num_kv_heads, block_size, head_dim), float("nan")
        ).to(device, dtype)
        kv_layer = pool[:, 1]
        # Block 0, which padded and masked table entries point to, stays spare.
        spare = (torch.randperm(sum(needed) + 1) + 1).tolist()
        block_tables = torch.zeros((len(seq_lens), max(needed)), dtype=torch.int32)
        for i, length in enumerate(seq_lens):
            for j in range(needed[i]):
                block_tables[i, j] = spare.pop()
                used = min(block_size, length - j * block_size)
                values = torch.randn(2, num_kv_heads, used, head_dim)
                kv_layer[int(block_tables[i, j]), :, :, :used] = values.to(device, dtype)
        lengths = torch.tensor(seq_lens, dtype=torch.int32, device=device)
        return kv_layer, block_tables.to(device), lengths

    return build
