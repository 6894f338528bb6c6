"""Lines that are logged for each request: what is written when, and that nothing is lost."""

import asyncio
import io
import logging
import os
from collections.abc import Iterator

import pytest

from dynamod.observe.frequent import PAUSE, FrequentLine, write_waiting
from dynamod.observe.lines import HumanLines
from dynamod.observe.logs import Console

log = logging.getLogger("dynamod.test_frequent")


class Stream(io.StringIO):
    """`writes`: what each write gave."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


Written = list[str]


@pytest.fixture
def written() -> Iterator[Written]:
    stream = Stream()
    console = Console(HumanLines(), stream)
    logging.getLogger().addHandler(console)
    log.setLevel(logging.INFO)
    yield stream.writes
    logging.getLogger().removeHandler(console)
    log.setLevel(logging.NOTSET)


async def test_the_first_line_comes_at_once_and_the_next_ones_together(written: Written) -> None:
    line = FrequentLine(log, "request id=%s")
    for number in range(4):
        line.log(logging.INFO, number)
    assert [text.count("\n") for text in written] == [1]
    await asyncio.sleep(PAUSE * 1.01)
    assert [text.count("\n") for text in written] == [1, 3]
    assert [text.split("request ")[1] for text in "".join(written).splitlines()] == [f"id={n}" for n in range(4)]
    await asyncio.sleep(PAUSE * 2)
    line.log(logging.INFO, 4)
    assert len(written) == 3


async def test_a_write_is_no_longer_than_a_pipe_takes_in_one_piece(written: Written) -> None:
    line = FrequentLine(log, "%s")
    for number in range(40):
        line.log(logging.INFO, f"{number:03}" * 100)
    line.write()
    assert sum(text.count("\n") for text in written) == 40
    assert 1 < len(written) < 12
    assert max(map(len, written)) <= 4096
    assert os.fpathconf(0, "PC_PIPE_BUF") >= 4096


async def test_a_process_that_ends_writes_what_waits(written: Written) -> None:
    line = FrequentLine(log, "%s")
    line.log(logging.INFO, "a")
    line.log(logging.INFO, "b")
    write_waiting()
    assert "".join(written).count("\n") == 2


def test_another_loop_writes_too(written: Written) -> None:
    """A line that waited when its loop ended is written with the next one."""
    line = FrequentLine(log, "%s")

    async def two() -> None:
        line.log(logging.INFO, "a")
        line.log(logging.INFO, "b")

    for _ in range(2):
        asyncio.run(two())
    write_waiting()
    assert "".join(written).count("\n") == 4


async def test_records_are_those_of_the_logger(caplog: pytest.LogCaptureFixture, written: Written) -> None:
    """The caller, the level and the arguments; filters and handlers see them as any other."""
    FrequentLine(log, "status=%d").log(logging.WARNING, 404)
    log.warning("status=%d", 404)
    ours, usual = caplog.records
    same = ("name", "levelname", "levelno", "pathname", "filename", "module", "funcName", "process", "thread", "args")
    assert {one: getattr(ours, one) for one in same} == {one: getattr(usual, one) for one in same}
    assert ours.getMessage() == "status=404"
    assert 0 <= usual.created - ours.created < 1
    assert abs(ours.msecs - ours.created % 1 * 1000) < 1e-6


async def test_other_lines_of_the_moment_are_written_at_once(written: Written) -> None:
    line = FrequentLine(log, "%s")
    line.log(logging.INFO, "a")
    line.log(logging.INFO, "b")
    log.info("c")
    assert len(written) == 2
