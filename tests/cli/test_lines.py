"""What a command that serves prints of its processes: one mistake once, and nothing in the middle of an answer."""

import asyncio
import logging

from dynamod.actor.testing import run
from dynamod.cli.foreground import given_up
from dynamod.cli.lines import SHORTLY, Lines
from dynamod.message.node import Output
from dynamod.observe.lines import MarkedLines


def line(text: str, level: int = logging.ERROR, traceback: str = "", process: str = "g/Worker.0") -> Output:
    record = logging.LogRecord("dynamod.host", level, __file__, 1, text, None, None)
    record.exc_text = traceback or None
    return Output(process, "err", MarkedLines(component=process).format(record).encode())


class Shown:
    """Lines that keep what they print."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.printed: list[tuple[str, str]] = []
        self.lines = Lines(lambda: self.busy, lambda r: self.printed.append((r.getMessage(), r.exc_text or "")))


def test_what_the_last_line_says_is_not_said_before() -> None:
    async def main() -> list[tuple[str, str]]:
        shown = Shown()
        shown.lines.take(line("engine loads", logging.INFO))
        shown.lines.take(line("Worker crashed: no such file"))
        shown.lines.take(line("another thing is wrong"))
        shown.lines.take(line("g/Worker.0 is Fatal: no such file", process="dynamod"))
        assert [text for text, _ in shown.printed] == ["engine loads"]
        shown.lines.release(["no such file"])
        return shown.printed

    assert run(main()) == [("engine loads", ""), ("another thing is wrong", "")]


def test_what_the_last_line_has_said_is_not_said_behind_it() -> None:
    """The news of a model that cannot be served may be faster than the log line about it."""

    async def main() -> list[tuple[str, str]]:
        shown = Shown()
        shown.lines.release(["no such file"])
        shown.lines.take(line("cannot serve model bad: no such file"))
        shown.lines.take(line("another thing is wrong"))
        shown.lines.release()
        return shown.printed

    assert run(main()) == [("another thing is wrong", "")]


def test_an_error_that_ends_nothing_is_printed_shortly() -> None:
    async def main() -> None:
        shown = Shown()
        shown.lines.take(line("a"))
        shown.lines.take(line("b"))
        await asyncio.sleep(SHORTLY * 1.1)
        assert [text for text, _ in shown.printed] == ["a", "b"]
        shown.lines.take(line("c"))
        shown.lines.release(["", "x"])
        assert shown.printed[-1] == ("c", ""), "a reason that is not known tells nothing"
        shown.lines.ready()
        shown.lines.take(line("d"))
        assert shown.printed[-1] == ("d", "")

    run(main())


def test_the_same_traceback_is_printed_once_before_the_graph_is_ready() -> None:
    async def main() -> list[tuple[str, str]]:
        shown = Shown()
        for _ in range(3):
            shown.lines.take(line("Worker crashed", traceback="Traceback: x"))
        shown.lines.ready()
        shown.lines.take(line("Worker crashed", traceback="Traceback: x"))
        return shown.printed

    crashed = ("Worker crashed", "Traceback: x")
    assert run(main()) == [crashed, ("Worker crashed", ""), ("Worker crashed", ""), crashed]


def test_an_answer_is_not_cut_in_two() -> None:
    async def main() -> None:
        shown = Shown(busy=True)
        shown.lines.take(line("one", logging.INFO))
        assert shown.printed == []
        shown.busy = False
        shown.lines.flush()
        assert shown.printed == [("one", "")]

    run(main())


def test_components_of_one_process_share_their_reason() -> None:
    rows = [
        {"component": "Processor", "state": "Fatal", "last_error": "x"},
        {"component": "Frontend", "state": "Fatal", "last_error": "x"},
        {"component": "Worker", "state": "Fatal", "last_error": "y"},
        {"component": "Other", "state": "Ready", "last_error": "z"},
    ]
    assert given_up(rows) == {"x": ["Processor", "Frontend"], "y": ["Worker"]}
