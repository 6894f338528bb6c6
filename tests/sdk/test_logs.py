"""What a file logs is seen by the node, and nothing else changes."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamod.daemon.recent import Recent
from dynamod.observe.logstore import LogStore
from dynamod.sdk import logs
from dynamod.sdk.logs import Tap


@pytest.fixture
def recent(tmp_path: Path) -> Iterator[Recent]:
    log_store = LogStore(tmp_path)
    factory = logging.getLogRecordFactory()
    yield Recent(log_store)
    assert logging.getLogRecordFactory() == factory
    log_store.close()


def seen(recent: Recent) -> list[str]:
    return [line.partition("Z ")[2].strip() for line in recent.after(0, {"python/own.0"})]


async def test_records_are_copied_as_they_were_made(recent: Recent) -> None:
    tap = Tap(recent, "python/own.0", asyncio.get_running_loop())
    tap.open()
    values = ["first"]
    log = logging.getLogger("own.file")
    log.warning("it has %s", values)
    values.append("later")
    log.makeRecord("own.file", logging.WARNING, "f", 1, "%d %d", (1,), None)  # arguments that do not fit
    log.debug("not wanted")
    logging.makeLogRecord({"name": "a record", "msg": "of another process"})
    await asyncio.to_thread(log.error, "from a thread")
    tap.close()
    log.warning("too late")
    await asyncio.sleep(0.01)
    assert seen(recent) == [
        "WARN own.file: it has ['first'] component=python/own.0",
        "WARN own.file: %d %d (1,) component=python/own.0",
        "ERROR own.file: from a thread component=python/own.0",
    ]


async def test_a_factory_of_the_file_stays(recent: Recent) -> None:
    class Own(logging.LogRecord):
        pass

    before = logging.getLogRecordFactory()
    try:
        logging.setLogRecordFactory(Own)
        tap = Tap(recent, "python/own.0", asyncio.get_running_loop())
        tap.open()
        record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "hello", (), None)
        assert type(record) is Own
        ours = logging.getLogRecordFactory()
        logging.setLogRecordFactory(lambda *args, **kwargs: ours(*args, **kwargs))
        tap.close()
        assert logging.getLogRecordFactory() is not Own, "somebody else's is not taken away"
        logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "unseen", (), None)
        await asyncio.sleep(0)
        assert seen(recent) == ["INFO x: hello component=python/own.0"]
    finally:
        logging.setLogRecordFactory(before)


async def test_a_flood_is_cut_and_said_to_be(recent: Recent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WAITING", 3)
    tap = Tap(recent, "python/own.0", asyncio.get_running_loop())
    tap.open()
    try:
        log = logging.getLogger("own.file")
        for number in range(5):
            log.warning("%d", number)
        await asyncio.sleep(0)
        log.warning("then")
        await asyncio.sleep(0)
    finally:
        tap.close()
    texts = [line.split(": ", 1)[1].removesuffix(" component=python/own.0") for line in seen(recent)]
    assert [text for text in texts if "dropped" not in text] == ["0", "1", "2", "then"]
    assert [text for text in texts if "dropped" in text] == ["2 records were dropped: there were too many at once"]
