import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamod.observe import logstore
from dynamod.observe.logstore import LogStore

Hanging = tuple[threading.Event, threading.Event]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Hanging:
    """A disk that hangs: set once it does; to be set for it to go on."""
    write, hangs, goes_on = os.write, threading.Event(), threading.Event()

    def hang(fd: int, data: bytes) -> int:
        hangs.set()
        goes_on.wait(30)
        return write(fd, data)

    monkeypatch.setattr(os, "write", hang)
    return hangs, goes_on


@pytest.fixture
def log_store(tmp_path: Path) -> Iterator[LogStore]:
    log_store = LogStore(tmp_path / "logs", limit_bytes=1000)
    yield log_store
    log_store.close()


def line(second: int, text: str) -> str:
    return f"2025-03-17T14:03:{second:02d}.000000Z  INFO t: {text}"


def test_files_and_names(log_store: LogStore, tmp_path: Path) -> None:
    assert log_store.components() == []
    log_store.write("agg/Worker.0", "a\n")
    log_store.write("../x/..", "b")
    log_store.write("/etc/pass wd", "c")
    log_store.flush()
    assert (tmp_path / "logs/agg/Worker.0.log").read_text() == "a\n"
    assert log_store.components() == ["_/etc/pass_wd", "_/x/_", "agg/Worker.0"]
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_tail(log_store: LogStore) -> None:
    for number in range(9):
        log_store.write(f"Worker.{number % 2}", line(number, str(number)))
    assert log_store.tail(["Worker.0"], 2) == [line(6, "6"), line(8, "8")]
    assert log_store.tail(log_store.components(), 3) == [line(6, "6"), line(7, "7"), line(8, "8")]
    assert log_store.tail(["Work"], 3) == []
    assert log_store.tail(log_store.components(), 0) == []


def test_a_traceback_stays_with_its_line(log_store: LogStore) -> None:
    log_store.write("a", line(1, "failed\n  Traceback\n  more"))
    log_store.write("b", line(2, "later"))
    log_store.write("a", line(3, "last"))
    texts = [text.split(": ")[-1].strip() for text in log_store.tail(["a", "b"], 99)]
    assert texts == ["failed", "Traceback", "more", "later", "last"]


def test_rotation_is_bounded_and_tail_reads_over_it(log_store: LogStore, tmp_path: Path) -> None:
    for number in range(200):
        log_store.write("w", f"{number:03d} " + "x" * 46)
    log_store.flush()
    files = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert files == ["w.log", "w.log.1"]
    assert all(path.stat().st_size <= 1000 for path in (tmp_path / "logs").iterdir())
    assert [text[:3] for text in log_store.tail(["w"], 25)] == [f"{number:03d}" for number in range(175, 200)]
    assert len(log_store.tail(["w"], 1000)) <= 40


def test_an_earlier_run_is_continued(log_store: LogStore, tmp_path: Path) -> None:
    log_store.write("w", "one")
    log_store.close()
    again = LogStore(tmp_path / "logs")
    again.write("w", "two")
    assert again.tail(["w"], 9) == ["one", "two"]
    again.close()


def test_long_files_are_read_from_the_end(tmp_path: Path) -> None:
    log_store = LogStore(tmp_path)
    for number in range(3000):
        log_store.write("w", f"{number:04d} " + "é" * 100)
    assert [text[:4] for text in log_store.tail(["w"], 1500)] == [f"{number:04d}" for number in range(1500, 3000)]
    log_store.close()


def test_a_full_disk_costs_lines_and_is_logged_once(
    log_store: LogStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    class IntoTheStore(logging.Handler):
        """As the daemon's own: an error that it logs must not come back as one more error."""

        def emit(self, record: logging.LogRecord) -> None:
            log_store.write("dynamod", record.getMessage())

    handler = IntoTheStore()
    logging.getLogger().addHandler(handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            for _ in range(3):
                log_store.write("w", "lost")
            log_store.flush()
        assert len([record for record in caplog.records if "cannot be written" in record.getMessage()]) == 1
        log_store.write("w", "kept")
    finally:
        logging.getLogger().removeHandler(handler)
    assert log_store.tail(["w"], 9) == ["kept"]


def test_a_line_torn_by_a_full_disk_is_ended(log_store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
        log_store.write("w", "0123456789")
        log_store.flush()
    log_store.write("w", "next")
    assert log_store.tail(["w"], 9) == ["012", "next"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log_store = LogStore(tmp_path / "file")
    log_store.write("w", "x")
    assert log_store.tail(["w"], 9) == []


def dropped(lines: list[str]) -> int:
    (note,) = [line for line in lines if "lines were dropped because the disk was too slow" in line]
    return int(note.split()[0])


def test_a_disk_that_hangs_blocks_nobody_and_costs_lines(tmp_path: Path, hanging: Hanging) -> None:
    log_store = LogStore(tmp_path)
    hangs, goes_on = hanging
    try:
        for number in range(1000):
            log_store.write("w", f"{number:03d}" + "x" * 20_000)
            assert hangs.wait(30), "the first line is being written"
        assert log_store.tail(["w"], 9) == []
    finally:
        goes_on.set()
    log_store._backlog.flush(30)
    written = log_store.tail(["w"], 1000)
    log_store.close()
    assert [int(line[:3]) for line in written if line[:2] != "  "] == [*range(1000 - dropped(written))]
    assert dropped(written) < 1000, "what is within the bound is written"


def test_a_folder_that_is_removed_is_made_again(
    log_store: LogStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logstore, "LOOK", -1.0)
    log_store.write("a/w", "lost")
    log_store.flush()
    shutil.rmtree(tmp_path / "logs")
    log_store.write("a/w", "kept")
    assert log_store.tail(["a/w"], 9) == ["kept"]
    assert log_store.failure == ""


def test_a_disk_that_hangs_at_the_end_brings_no_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: Hanging
) -> None:
    monkeypatch.setattr(logstore, "FLUSH", 0.01)
    monkeypatch.setattr(logstore, "LOOK", -1.0)
    log_store = LogStore(tmp_path / "logs")
    hangs, goes_on = hanging
    log_store.write("a/w", "is being written")
    assert hangs.wait(30)
    log_store.write("a/w", "waits")
    log_store.close()
    shutil.rmtree(tmp_path / "logs")
    goes_on.set()
    log_store._backlog.flush(30)
    assert log_store._backlog.idle
    assert list(tmp_path.iterdir()) == []
