"""What a file logs is seen by the node, and nothing else changes."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from dynamod.message.node import Output
from dynamod.observe.capture import LineReader
from dynamod.observe.lines import HumanLines
from dynamod.sdk import logs
from dynamod.sdk.logs import LogTap


class Lines(list[str]):
    """What the daemon makes of the lines that it gets."""

    def __init__(self) -> None:
        self.reader = LineReader("python/own.0", self.take)

    def send(self, line: Output) -> None:
        assert (line.process, line.stream) == ("python/own.0", "err")
        self.reader.feed(line.stream, line.line)

    def take(self, record: logging.LogRecord) -> None:
        self.append(HumanLines().format(record).partition("Z ")[2].strip())


@pytest.fixture
def lines() -> Iterator[Lines]:
    factory = logging.getLogRecordFactory()
    yield Lines()
    assert logging.getLogRecordFactory() == factory


async def test_records_are_copied_as_they_were_made(lines: Lines) -> None:
    tap = LogTap("python/own.0", asyncio.get_running_loop(), lines.send)
    tap.__enter__()
    values = ["first"]
    log = logging.getLogger("own.file")
    log.warning("it has %s", values)
    values.append("later")
    log.makeRecord("own.file", logging.WARNING, "f", 1, "%d %d", (1,), None)  # arguments that do not fit
    log.debug("not wanted")
    logging.makeLogRecord({"name": "a record", "msg": "of another process"})
    await asyncio.to_thread(log.error, "from a thread")
    tap.__exit__()
    log.warning("too late")
    await asyncio.sleep(0.01)
    assert lines == [
        "WARN own.file: it has ['first'] component=python/own.0",
        "WARN own.file: %d %d (1,) component=python/own.0",
        "ERROR own.file: from a thread component=python/own.0",
    ]


async def test_a_factory_of_the_file_stays(lines: Lines) -> None:
    class Own(logging.LogRecord):
        pass

    before = logging.getLogRecordFactory()
    try:
        logging.setLogRecordFactory(Own)
        tap = LogTap("python/own.0", asyncio.get_running_loop(), lines.send)
        tap.__enter__()
        record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "hello", (), None)
        assert type(record) is Own
        ours = logging.getLogRecordFactory()
        logging.setLogRecordFactory(lambda *args, **kwargs: ours(*args, **kwargs))
        tap.__exit__()
        assert logging.getLogRecordFactory() is not Own, "somebody else's is not taken away"
        logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "unseen", (), None)
        await asyncio.sleep(0)
        assert lines == ["INFO x: hello component=python/own.0"]
    finally:
        logging.setLogRecordFactory(before)


async def test_a_flood_is_cut_and_said_to_be(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WAITING", 3)
    tap = LogTap("python/own.0", asyncio.get_running_loop(), lines.send)
    tap.__enter__()
    try:
        log = logging.getLogger("own.file")
        for number in range(5):
            log.warning("%d", number)
        await asyncio.sleep(0)
        log.warning("then")
        await asyncio.sleep(0)
    finally:
        tap.__exit__()
    texts = [line.split(": ", 1)[1].removesuffix(" component=python/own.0") for line in lines]
    assert [text for text in texts if "dropped" not in text] == ["0", "1", "2", "then"]
    assert [text for text in texts if "dropped" in text] == ["2 records were dropped: there were too many at once"]
