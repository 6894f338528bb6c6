"""Lines that a thread writes: each is written or counted as dropped, and no disk holds the loop up."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dynamod.observe import line_writer
from dynamod.observe.line_writer import LineWriter
from dynamod.observe.rotated import RotatedFile, Rotation


def lost(count: int) -> bytes:
    return b"lost %d\n" % count


class Disk(RotatedFile):
    """Takes at most `room` lines, and none before `open` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "w", Rotation(1_000_000, 0, 3))
        self.room, self.lines = 1_000_000, list[bytes]()
        self.open = threading.Event()
        self.open.set()
        self.calls = 0

    def append(self, lines: Sequence[bytes]) -> int:
        self.open.wait(10)
        self.calls += 1
        taken = lines[: self.room]
        self.room -= len(taken)
        self.lines += taken
        self.failure = "No space left on device" if len(taken) < len(lines) else ""
        return len(taken)


async def settled(writer: LineWriter) -> None:
    writer.hand_over()
    while writer.taken != writer.written + writer.dropped:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_lines_of_one_moment_are_written_together(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    writer = LineWriter(disk, "test", lost)
    for number in range(1000):
        writer.put(b'{"n":%d,"text":"\xc3\xa9"}\n' % number)
    assert disk.calls == 0
    await writer.close(5)
    assert (writer.taken, writer.written, writer.dropped, disk.calls) == (1000, 1000, 0, 1)
    assert disk.lines[999] == '{"n":999,"text":"é"}\n'.encode()


async def test_they_are_written_without_a_close(tmp_path: Path) -> None:
    writer = LineWriter(RotatedFile(tmp_path, "w", Rotation(1_000_000, 0, 3)), "test", lost)
    writer.put(b"a\n")
    while writer.written < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert (tmp_path / "w.jsonl").read_bytes() == b"a\n"
    await writer.close(5)


async def test_a_full_disk_is_counted_said_once_and_told_to_readers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path)
    writer = LineWriter(disk, "test", lost)
    disk.room = 3
    for number in range(10):
        writer.put(b"%d\n" % number)
    await settled(writer)
    for number in range(10, 15):
        writer.put(b"%d\n" % number)
        await settled(writer)
    assert (writer.written, writer.dropped) == (3, 12)
    assert [record.message for record in caplog.records] == [
        f"test: {disk.path}: No space left on device; 7 lines were dropped so far"
    ]
    disk.room = 100
    writer.put(b"15\n")
    await settled(writer)
    assert disk.lines == [b"0\n", b"1\n", b"2\n", b"lost 12\n", b"15\n"]
    assert (writer.written, writer.dropped, writer.taken) == (4, 12, 16)
    await writer.close(5)
    assert "12 of 16 lines are in no file" in caplog.text


async def test_more_lines_than_may_be_on_their_way_are_dropped(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.open.clear()
    writer = LineWriter(disk, "test", most=10, pause=60.0)
    for number in range(100):
        writer.put(b"%d\n" % number)
    assert writer.dropped == 90
    disk.open.set()
    await writer.close(5)
    assert (writer.written, writer.taken) == (10, 100)


async def test_a_disk_that_hangs_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_writer, "GATHERED", 50)
    disk = Disk(tmp_path)
    disk.open.clear()
    writer = LineWriter(disk, "test", lost, waiting=200)
    began = time.monotonic()
    for number in range(100):
        writer.put(b"%09d\n" % number)
    assert time.monotonic() - began < 1
    assert 60 <= writer.dropped <= 96  # at most 20 lines wait, and one batch is with the disk
    await writer.close(0.05)
    assert "the disk is too slow" in caplog.text
    disk.open.set()
    await settled(writer)
    assert writer.written + writer.dropped == 100
    writer.put(b"after\n")
    await settled(writer)
    assert any(line.startswith(b"lost ") for line in disk.lines)
    assert sum(not line.startswith(b"lost ") for line in disk.lines) == writer.written
