"""A team of threads: what it computes, and how a helper's core is given back."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from octavo.kernels.cpu import mailbox
from octavo.kernels.cpu.atomics import add_number, load_word, pause, store_word
from octavo.kernels.cpu.memory import float_of, unpacked
from octavo.kernels.cpu.team import HelperCore, Team, float_bits, kernel, kernel_per_format, run
from octavo.kernels.cpu.vector import load, mul, splat, store

MEMBERS = [0, 1, 2, 3]


@kernel_per_format
def _scale(format):
    def scale(args, first, last):
        x, out, size, item, factor = unpacked(args, 5)
        for row in range(first, last):
            place = row * size * item
            for i in range(0, size, 16):
                v = mul(load(format, x + place, i), splat(float_of(factor)))
                store(format, out + place, i, v)

    return scale


@kernel
def _count(args, first, last):
    """counts[item] += 1"""
    (counts,) = unpacked(args, 1)
    for item in range(first, last):
        add_number(counts + item * 8, 1)


@kernel
def _meet(args, first, last):
    """Tells that it began, and waits until told to go on."""
    (words,) = unpacked(args, 1)
    for item in range(first, last):
        store_word(words + item * 4, 1)
        while load_word(words + 8) == 0:
            pause()


@contextmanager
def team_of(helpers: list[HelperCore]) -> Iterator[Team]:
    team = Team(helpers)
    try:
        yield team
    finally:
        team.close()


def wait_for(word: np.ndarray, index: int, value: int) -> None:
    while mailbox.read_word(word.ctypes.data + 4 * index) != value:
        threading.Event().wait(0.0002)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_helpers", MEMBERS)
def test_any_number_of_members_does_all_items(num_helpers: int, dtype: torch.dtype) -> None:
    x = torch.randn(50, 64).to(dtype)
    with team_of([HelperCore()] * num_helpers) as team, team.at_work():
        for grain in (1, 7, 50, 100):
            out = torch.empty_like(x)
            args = (x.data_ptr(), out.data_ptr(), 64, x.element_size(), float_bits(0.5))
            run(_scale(dtype), args, 50, grain)
            assert torch.equal(out, x * 0.5)


@pytest.mark.parametrize("num_helpers", MEMBERS)
def test_every_item_is_done_once_step_after_step(num_helpers: int) -> None:
    counts = np.zeros(13, np.int64)
    with team_of([HelperCore()] * num_helpers) as team:
        for _ in range(20):
            with team.at_work():
                for _ in range(10):
                    run(_count, (counts.ctypes.data,), 13, 2)
    assert counts.tolist() == [200] * 13


def test_no_items_are_no_work() -> None:
    with team_of([HelperCore()]) as team, team.at_work():
        run(_count, (0,), 0, 1)


def test_members_work_at_the_same_time() -> None:
    words = np.zeros(3, np.int32)  # (first began, second began, go on)

    def release() -> None:
        wait_for(words, 0, 1)
        wait_for(words, 1, 1)
        mailbox.write_word(words.ctypes.data + 8, 1)

    other = threading.Thread(target=release)
    other.start()
    borrowed = np.zeros(2, np.int32)
    lent = HelperCore(None, borrowed.ctypes.data, borrowed.ctypes.data + 4)
    with team_of([lent]) as team, team.at_work():
        wait_for(borrowed, 1, 1)
        run(_meet, (words.ctypes.data,), 2, 1)  # ends only if both items begin before one ends
    other.join()


def test_a_core_that_is_wanted_back_comes_free_within_a_kernel() -> None:
    shared = np.zeros(2, np.int32)  # (wanted, borrowed)
    counts = np.zeros(20_000, np.int64)
    gone = threading.Event()

    def owner() -> None:
        wait_for(shared, 1, 1)
        mailbox.write_word(shared.ctypes.data, 1)
        wait_for(shared, 1, 0)
        gone.set()

    with team_of([HelperCore(None, shared.ctypes.data, shared.ctypes.data + 4)]) as team:
        for _ in range(3):
            gone.clear()
            thread = threading.Thread(target=owner)
            thread.start()
            rounds = 0
            with team.at_work():
                while not gone.is_set():
                    run(_count, (counts.ctypes.data,), len(counts), 1)
                    rounds += 1
                run(_count, (counts.ctypes.data,), len(counts), 1)  # alone now
            thread.join()
            with team.at_work():  # not lent while it is wanted
                run(_count, (counts.ctypes.data,), len(counts), 1)
                assert mailbox.read_word(shared.ctypes.data + 4) == 0
            assert (counts == rounds + 2).all()
            counts[:] = 0
            mailbox.write_word(shared.ctypes.data, 0)


def test_an_exception_within_a_step_dismisses_the_helpers() -> None:
    shared = np.zeros(2, np.int32)
    with team_of([HelperCore(None, shared.ctypes.data, shared.ctypes.data + 4)]) as team:
        with pytest.raises(KeyError), team.at_work():
            wait_for(shared, 1, 1)
            raise KeyError
        wait_for(shared, 1, 0)
        counts = np.zeros(8, np.int64)
        with team.at_work():
            run(_count, (counts.ctypes.data,), 8, 1)
        assert (counts == 1).all()


def test_other_threads_work_alone_beside_a_step() -> None:
    counts = np.zeros(9, np.int64)
    with team_of([HelperCore()]) as team, team.at_work():
        other = threading.Thread(target=run, args=(_count, (counts.ctypes.data,), 9, 1))
        other.start()
        run(_count, (counts.ctypes.data,), 9, 1)
        other.join()
    assert (counts == 2).all()


def test_a_core_that_is_not_ours_is_refused_by_number() -> None:
    with pytest.raises(ValueError, match="core 4095"):
        Team([HelperCore(), HelperCore(core=4095)])


def test_helpers_end_with_their_team() -> None:
    team = Team([HelperCore()] * 2)
    mine = [t for t in threading.enumerate() if t.name.startswith("octavo-helper")][-2:]
    team.close()
    team.close()
    for thread in mine:
        thread.join(timeout=20)
        assert not thread.is_alive()
    with team.at_work():
        run(_count, (np.zeros(3, np.int64).ctypes.data,), 3, 1)


def test_a_process_ends_while_helpers_are_at_work() -> None:
    code = (
        "import sys; from octavo.kernels.cpu.team import HelperCore, Team\n"
        "with Team([HelperCore()] * 2).at_work(): sys.exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 7
