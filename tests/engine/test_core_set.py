"""Sets of cores: read, written, chosen from a machine, and shared out among workers."""

from pathlib import Path

import pytest

from octavo.engine.core_set import (
    format_cores,
    llm_cores,
    parse_cores,
    physical_cores,
    share_cores,
    usable_cores,
)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8", (0, 1, 8)), ("3,5-6,9", (3, 5, 6, 9))],
)
def test_a_set_of_cores_is_read_and_written_alike(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores
    assert format_cores(cores) == text


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "0-", "0 1"])
def test_what_is_no_set_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cores are given as 0-3,8"):
        parse_cores(text)


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for core, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores((0, 1, 2, 3), tmp_path) == (0, 1)
    assert physical_cores((2, 3), tmp_path) == (2, 3)
    assert physical_cores((4, 5), tmp_path) == (4, 5), "of which nothing is known"


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", (0, 1, 2)), ("200000 100000", (0, 1)), ("50000 100000", (0,))],
)
def test_a_container_uses_no_more_cores_than_its_time_fills(
    tmp_path: Path, limit: str, cores: tuple[int, ...]
) -> None:
    file = tmp_path / "cpu.max"
    assert usable_cores((0, 1, 2), file) == (0, 1, 2), "no file, no limit"
    file.write_text(f"{limit}\n")
    assert usable_cores((0, 1, 2), file) == cores


@pytest.mark.parametrize(
    ("num_cores", "num_prefills", "num_decodes", "sizes"),
    [(2, 1, 1, [1, 1]), (5, 1, 1, [2, 3]), (8, 1, 2, [2, 3, 3]), (11, 3, 1, [2, 2, 2, 5])],
)
def test_workers_get_as_many_cores_and_decode_workers_the_rest(
    num_cores: int, num_prefills: int, num_decodes: int, sizes: list[int]
) -> None:
    shares = share_cores(range(num_cores), num_prefills, num_decodes)
    assert [len(share) for share in shares] == sizes
    assert [core for share in shares for core in share] == list(range(num_cores))


def test_more_workers_than_cores_take_turns() -> None:
    assert share_cores((4, 7), 2, 2) == [(4,), (7,), (4,), (7,)]
    assert share_cores((), 1, 1) == [(), ()], "a system that does not tell its cores"


def test_threads_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="num_threads must be at least 1, got 0"):
        llm_cores(0)
    assert len(llm_cores(1)) <= 1
