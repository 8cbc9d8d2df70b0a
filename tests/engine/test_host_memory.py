"""Memory of a pool on the CPU: zeros of any type, in large pages where the kernel has them."""

import mmap
from pathlib import Path

import pytest
import torch

from engine.smaps import bytes_of
from octavo.engine.host_memory import HUGE_PAGE, zeros

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(3, 5), (HUGE_PAGE + 12, 4)])
def test_zeros_are_zero_and_can_be_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = zeros(shape, dtype)
    assert made.shape == shape and made.dtype == dtype and made.is_contiguous()
    assert not made.any()
    made[-1, -1] = 7
    assert made.sum() == 7


def test_a_large_pool_lies_in_large_pages() -> None:
    if not SETTING.exists() or "[never]" in SETTING.read_text():
        pytest.skip("this kernel has no transparent huge pages")
    made = zeros((8, HUGE_PAGE), torch.uint8)
    assert made.data_ptr() % HUGE_PAGE == 0
    made.fill_(1)
    assert bytes_of(made.data_ptr(), "AnonHugePages") > 0


def test_memory_goes_with_its_last_view(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Memory(mmap.mmap):
        def __del__(self) -> None:
            closed.append(True)

    monkeypatch.setattr(mmap, "mmap", Memory)
    made = zeros((2, HUGE_PAGE), torch.uint8)
    view = made[1]
    del made
    assert not closed
    del view
    assert closed
