"""A team of threads: what it computes, and how a helper's core is given back."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from octavo.kernels.cpu import mailbox
from octavo.kernels.cpu.atomics import (
    add_number,
    load_number,
    load_word,
    on_stack,
    pause,
    store_number,
    store_word,
)
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


@kernel
def _linger(args, first, last):
    """Main waits until a helper has an item too, the helper until it is dismissed."""
    shared, began = unpacked(args, 2)
    for item in range(first, last):
        if abs(on_stack((item,)) - args) < 65536:  # arguments lie on main's stack
            while load_number(began) == 0:
                pause()
        else:
            store_number(began, 1)
            while load_number(shared + mailbox.OPEN) == 1:
                pause()


@contextmanager
def team_of(helpers: list[HelperCore]) -> Iterator[Team]:
    team = Team(helpers)
    try:
        yield team
    finally:
        team.close()


def present(team: Team) -> int:
    return int(team._mailbox[mailbox.PRESENT // 8])


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.0002)


def helped_step(team: Team, lingering: tuple[int, ...] = ()) -> None:
    """A step in which the helper comes; with `lingering`, it is put aside in the middle."""
    done = False
    while not done:  # on a busy machine main may be going alone just now
        with team.at_work():
            if team._mailbox[mailbox.OPEN // 8] == 0:
                continue
            wait_until(lambda: present(team) == 1)
            if lingering:
                run(_linger, lingering, 2, 1)
                wait_until(lambda: present(team) == 0)
        done = True


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
    with team_of([HelperCore()]) as team, team.at_work():
        wait_until(lambda: present(team) == 1)
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
        thread = threading.Thread(target=owner)
        thread.start()
        rounds = 0
        while not gone.is_set():
            with team.at_work():
                for _ in range(50):
                    run(_count, (counts.ctypes.data,), len(counts), 1)
                    rounds += 1
        thread.join()
        with team.at_work():  # not lent while it is wanted
            run(_count, (counts.ctypes.data,), len(counts), 1)
            assert mailbox.read_word(shared.ctypes.data + 4) == 0
        assert (counts == rounds + 1).all()
        mailbox.write_word(shared.ctypes.data, 0)
        helped_step(team)


def test_a_core_that_is_lent_again_helps_with_the_rest_of_the_step() -> None:
    shared = np.zeros(2, np.int32)  # (wanted, borrowed)
    with team_of([HelperCore(None, shared.ctypes.data, shared.ctypes.data + 4)]) as team:
        mailbox.write_word(shared.ctypes.data, 1)
        with team.at_work():
            for _ in range(2):
                threading.Event().wait(0.005)
                assert present(team) == 0
                mailbox.write_word(shared.ctypes.data, 0)
                wait_until(lambda: present(team) == 1)
                mailbox.write_word(shared.ctypes.data, 1)
                wait_for(shared, 1, 0)


def test_a_helper_that_is_put_aside_is_left_alone_for_longer_and_longer() -> None:
    with team_of([HelperCore()]) as team:
        for rest in (1, 3):
            began = np.zeros(1, np.int64)
            helped_step(team, (team._mailbox.ctypes.data, began.ctypes.data))
            for _ in range(rest):
                with team.at_work():
                    counts = np.zeros(9, np.int64)
                    run(_count, (counts.ctypes.data,), 9, 1)
                    assert (counts == 1).all()
                    assert present(team) == 0
        helped_step(team)


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
