"""Pages ahead of the blocks in use are mapped, those far away are not, and no byte changes."""

import sys
import time

import pytest
import torch

from engine.smaps import bytes_of
from octavo.engine.block_pool import BlockPool
from octavo.engine.host_memory import HUGE_PAGE, zeros
from octavo.engine.pages_ahead import AHEAD_BYTES, LEAST_BYTES, PagesAhead

TIMEOUT_S = 30
POOL_BYTES = 2 * AHEAD_BYTES
linux = pytest.mark.skipif(sys.platform != "linux", reason="populating is Linux's")


def resident_bytes(memory: torch.Tensor) -> int:
    return bytes_of(memory.data_ptr(), "Rss")


def wait_until_resident(memory: torch.Tensor, num_bytes: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while resident_bytes(memory) < num_bytes:
        assert time.monotonic() < deadline, "no pages were mapped: a kernel before 5.14?"
        time.sleep(0.01)


@linux
def test_what_comes_next_is_mapped_and_no_more() -> None:
    memory = zeros((POOL_BYTES,), torch.uint8)
    pages = PagesAhead(memory)
    pages.use(LEAST_BYTES - 1)  # a start's
    pages._thread.submit(int).result(TIMEOUT_S)
    assert resident_bytes(memory) < HUGE_PAGE
    pages.use(LEAST_BYTES)
    wait_until_resident(memory, LEAST_BYTES + AHEAD_BYTES)
    pages.use(LEAST_BYTES + 1)  # too little more to wake anybody for
    pages._thread.submit(int).result(TIMEOUT_S)
    assert resident_bytes(memory) < LEAST_BYTES + AHEAD_BYTES + 2 * HUGE_PAGE
    memory[:HUGE_PAGE] = 7
    pages.use(POOL_BYTES)
    wait_until_resident(memory, POOL_BYTES)
    assert memory[:HUGE_PAGE].eq(7).all() and not memory[HUGE_PAGE:].any()


def test_a_pool_tells_how_far_it_was_used() -> None:
    pool = BlockPool(8)
    assert pool.num_used == 0
    first = pool.allocate(3)
    pool.free(first)
    pool.allocate(2)
    assert pool.num_used == 3
    pool.allocate(6)
    assert pool.num_used == 8
