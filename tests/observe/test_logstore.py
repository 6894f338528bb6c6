import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamod.observe.logstore import BookHandler, LogBook


@pytest.fixture
def book(tmp_path: Path) -> Iterator[LogBook]:
    book = LogBook(tmp_path / "logs", limit_bytes=1000)
    yield book
    book.close()


def line(second: int, text: str) -> str:
    return f"2025-03-17T14:03:{second:02d}.000000Z  INFO t: {text}"


def test_files_and_names(book: LogBook, tmp_path: Path) -> None:
    assert book.components() == []
    book.write("agg/Worker.0", "a\n")
    book.write("../x/..", "b")
    book.write("/etc/pass wd", "c")
    assert (tmp_path / "logs/agg/Worker.0.log").read_text() == "a\n"
    assert book.components() == ["_/etc/pass_wd", "_/x/_", "agg/Worker.0"]
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_tail(book: LogBook) -> None:
    for number in range(9):
        book.write(f"Worker.{number % 2}", line(number, str(number)))
    assert book.tail("Worker.0", 2) == [line(6, "6"), line(8, "8")]
    assert book.tail(None, 3) == book.tail("Worker", 3) == [line(6, "6"), line(7, "7"), line(8, "8")]
    assert book.tail("Work", 3) == []
    assert book.tail(None, 0) == []


def test_a_traceback_stays_with_its_line(book: LogBook) -> None:
    book.write("a", line(1, "failed\n  Traceback\n  more"))
    book.write("b", line(2, "later"))
    book.write("a", line(3, "last"))
    texts = [text.split(": ")[-1].strip() for text in book.tail(None, 99)]
    assert texts == ["failed", "Traceback", "more", "later", "last"]


def test_rotation_is_bounded_and_tail_reads_over_it(book: LogBook, tmp_path: Path) -> None:
    for number in range(200):
        book.write("w", f"{number:03d} " + "x" * 46)
    files = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert files == ["w.log", "w.log.1"]
    assert all(path.stat().st_size <= 1000 for path in (tmp_path / "logs").iterdir())
    assert [text[:3] for text in book.tail("w", 25)] == [f"{number:03d}" for number in range(175, 200)]
    assert len(book.tail("w", 1000)) <= 40


def test_keep_one(tmp_path: Path) -> None:
    book = LogBook(tmp_path, limit_bytes=100, keep=1)
    for number in range(50):
        book.write("w", f"{number} " + "x" * 40)
    book.close()
    assert [path.name for path in tmp_path.iterdir()] == ["w.log"]


def test_an_earlier_run_is_continued(book: LogBook, tmp_path: Path) -> None:
    book.write("w", "one")
    book.close()
    again = LogBook(tmp_path / "logs")
    again.write("w", "two")
    assert again.tail("w", 9) == ["one", "two"]
    again.close()


def test_long_files_are_read_from_the_end(tmp_path: Path) -> None:
    book = LogBook(tmp_path, keep=1)
    for number in range(3000):
        book.write("w", f"{number:04d} " + "é" * 100)
    assert [text[:4] for text in book.tail("w", 1500)] == [f"{number:04d}" for number in range(1500, 3000)]
    book.close()


def test_a_full_disk_costs_lines_and_is_logged_once(
    book: LogBook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    handler = BookHandler(book)
    logging.getLogger().addHandler(handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            for _ in range(3):
                book.write("w", "lost")
        assert len([record for record in caplog.records if "cannot be written" in record.getMessage()]) == 1
        book.write("w", "kept")
    finally:
        logging.getLogger().removeHandler(handler)
    assert book.tail("w", 9) == ["kept"]


def test_a_line_torn_by_a_full_disk_is_ended(book: LogBook, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
        book.write("w", "0123456789")
    book.write("w", "next")
    assert book.tail("w", 9) == ["012", "next"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    book = LogBook(tmp_path / "file")
    book.write("w", "x")
    assert book.tail("w", 9) == []


async def test_follow(book: LogBook) -> None:
    everything, workers = book.follow(), book.follow("Worker")
    book.write("Frontend", "1")
    threading.Thread(target=book.write, args=("Worker.0", "2")).start()
    async with asyncio.timeout(5):
        assert [await anext(everything), await anext(everything), await anext(workers)] == ["1", "2", "2"]
        waiting = asyncio.ensure_future(anext(workers))
        await asyncio.sleep(0)
        book.write("Worker.1", "3")
        assert await waiting == "3"
        book.write("Worker.1", "4")
        book.close()
        assert [text async for text in workers] == ["4"]


async def test_a_slow_follower_loses_the_oldest(book: LogBook) -> None:
    follower = book.follow(limit=3)
    for number in range(10):
        book.write("w", str(number))
    book.close()
    assert [text async for text in follower] == ["... 7 lines dropped, the reader was slow", "7", "8", "9"]


async def test_a_follower_that_nobody_holds_is_forgotten(book: LogBook) -> None:
    book.write("w", "1")
    book.follow()
    book.write("w", "2")
    assert len(book._followers) == 0


def test_the_handler_sorts_by_component(book: LogBook) -> None:
    handler = BookHandler(book)
    handler.handle(logging.makeLogRecord({"name": "t", "msg": "mine", "levelno": 20}))
    handler.handle(logging.makeLogRecord({"name": "t", "msg": "theirs", "levelno": 20, "component": "agg/W.0"}))
    assert book.tail("dynamod", 1)[0].endswith("  INFO t: mine")
    assert book.tail("agg", 1)[0].endswith("  INFO t: theirs component=agg/W.0")
