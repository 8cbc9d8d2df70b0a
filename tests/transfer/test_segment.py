"""The shared-memory segment: who may attach, what is swept, and which slot is whose."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.transfer.namespace import SHM_FOLDER, shared_memory_namespace
from octavo.transfer.segment import (
    AttachedSegment,
    SegmentError,
    StagingSegment,
    sweep_dead_segments,
)

EPOCH = 0x0123456789ABCDEF


@pytest.fixture
def segment() -> Iterator[StagingSegment]:
    made = StagingSegment(EPOCH, slot_bytes=4096, num_slots=3)
    yield made
    made.unlink()


def test_both_sides_see_the_same_bytes(segment: StagingSegment) -> None:
    attached = AttachedSegment(segment.name, segment.size_bytes)
    segment.view(2)[:5] = b"hello"
    view = attached.view(segment.offset(2), 5)
    assert bytes(view) == b"hello" and view.readonly


def test_only_its_user_can_open_it(segment: StagingSegment) -> None:
    assert (SHM_FOLDER / segment.name).stat().st_mode & 0o777 == 0o600


def test_a_mapping_outlives_the_name(segment: StagingSegment) -> None:
    attached = AttachedSegment(segment.name, segment.size_bytes)
    segment.unlink()
    segment.unlink()
    segment.view(0)[:3] = b"abc"
    assert bytes(attached.view(0, 3)) == b"abc"
    with pytest.raises(SegmentError, match="cannot open"):
        AttachedSegment(segment.name, segment.size_bytes)


def test_a_wrong_size_is_refused(segment: StagingSegment) -> None:
    for size in (0, segment.size_bytes - 1, segment.size_bytes + 1):
        with pytest.raises(SegmentError, match="bytes"):
            AttachedSegment(segment.name, size)


@pytest.mark.parametrize(
    "name", ["", "../etc/passwd", "octavo-kv-1-0/../x", "octavo-kv-1-xyz", "sem.other"]
)
def test_names_that_are_not_ours_are_refused(name: str) -> None:
    with pytest.raises(SegmentError, match="not the name"):
        AttachedSegment(name, 4096)


def test_links_and_folders_are_refused(segment: StagingSegment) -> None:
    link = SHM_FOLDER / "octavo-kv-1-00000000000000aa"
    link.symlink_to(SHM_FOLDER / segment.name)
    try:
        with pytest.raises(SegmentError, match="cannot open"):
            AttachedSegment(link.name, segment.size_bytes)
    finally:
        link.unlink()
    folder = SHM_FOLDER / "octavo-kv-1-00000000000000ab"
    folder.mkdir()
    try:
        with pytest.raises(SegmentError, match="regular"):
            AttachedSegment(folder.name, 4096)
    finally:
        folder.rmdir()


def test_bytes_outside_are_refused(segment: StagingSegment) -> None:
    attached = AttachedSegment(segment.name, segment.size_bytes)
    assert len(attached.view(0, segment.size_bytes)) == segment.size_bytes
    for offset, length in ((1, segment.size_bytes), (2**63, 1), (segment.size_bytes, 1)):
        with pytest.raises(SegmentError, match="outside"):
            attached.view(offset, length)


def test_a_segment_too_large_is_an_error_and_leaves_nothing() -> None:
    with pytest.raises(SegmentError, match="cannot make"):
        StagingSegment(EPOCH + 1, slot_bytes=1 << 50, num_slots=1)
    assert not list(SHM_FOLDER.glob(f"*{EPOCH + 1:016x}"))


def test_dead_owners_segments_are_swept_and_live_ones_kept(segment: StagingSegment) -> None:
    code = (
        "from octavo.transfer.segment import StagingSegment\n"
        "segment = StagingSegment(7, 4096, 1)\n"
        "print(segment.name, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        assert name not in sweep_dead_segments()
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    assert (SHM_FOLDER / name).exists()
    assert name in sweep_dead_segments()
    assert not (SHM_FOLDER / name).exists()
    assert (SHM_FOLDER / segment.name).exists()


def test_a_sweep_leaves_foreign_files_alone(tmp_path: Path) -> None:
    (tmp_path / "octavo-kv-notes.txt").write_text("mine")
    assert sweep_dead_segments(tmp_path) == []
    assert (tmp_path / "octavo-kv-notes.txt").exists()


async def test_slots_are_given_in_order_and_waited_for(segment: StagingSegment) -> None:
    slots = [await segment.take() for _ in range(3)]
    assert sorted(slots) == [0, 1, 2] and segment.num_free == 0
    first, second = asyncio.create_task(segment.take()), asyncio.create_task(segment.take())
    await asyncio.sleep(0)
    first.cancel()
    segment.give_back(1)
    assert await second == 1
    assert segment.num_free == 0


def test_one_host_has_one_namespace() -> None:
    boot_id, device = shared_memory_namespace().split(":")
    assert len(boot_id) == 36 and int(device) == os.stat(SHM_FOLDER).st_dev
