"""`dynamo top`: a live view of all component processes in a terminal."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic

import msgspec

from dynamod.cli.tables import table
from dynamod.message.errors import UserError

from .columns import GAP, age, sections, widths
from .rows import ClusterTop, Top, remembering
from .sources import L, Source

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

AGAIN = 1.0
"""Most seconds until the daemon is asked again after it has not answered."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLOURS = {"Ready": "green", "Ready?": "yellow", "Draining": "yellow", "Starting": "yellow"}


def run(source: Source[L], interval: float, *, once: bool, output: str) -> int:
    """Show it: live on a terminal, else once. Returns the exit code."""
    if once or output == "json" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        looks = source.looks(interval)
        before = next(looks)
        view = source.compare(next(looks), before)
        print(json.dumps(msgspec.to_builtins(view), indent=2) if output == "json" else plain(view))
    else:
        asyncio.run(_Live(source, interval).run())
    return 0


def plain(view: Top) -> str:
    """All columns as text tables."""
    parts = [table([column.title for column in part.columns], part.cells()) for part in sections(view)]
    return "\n".join([headline(view), *(parts or ["nothing is running"]), *waiting(view)])


def waiting(view: Top) -> list[str]:
    """Why requests wait, a line for each reason of each process."""
    return [f"{row.process}: {why}" for row in view.processes for why in row.waits]


def headline(view: Top) -> str:
    """The node, or all nodes, in a line."""
    count = f"{len(view.processes)} process{'' if len(view.processes) == 1 else 'es'}"
    if isinstance(view, ClusterTop):
        missing = "; ".join(f"{node}: {why}" for node, why in view.missing.items())
        nodes = f"{len(view.nodes)} node{'' if len(view.nodes) == 1 else 's'}, {count}"
        return f"{nodes}; no answer of {missing}" if missing else nodes
    return f"dynamod {view.version} pid {view.pid} on {view.node}, up {age(view.uptime)}, {count}"


class _Live(Generic[L]):
    """A thread takes what the daemon sends, the loop draws: keys and a new size are answered meanwhile."""

    def __init__(self, source: Source[L], interval: float) -> None:
        self._source, self._interval = source, interval
        self._over = asyncio.Event()
        self._trouble = ""

    async def run(self) -> None:
        """Draw until the user presses q. Raises UserError when no daemon answers at the start."""
        from rich.console import Console
        from rich.live import Live

        looks = self._source.looks(self._interval)
        self._before = next(looks)
        self._view = self._source.compare(self._before)
        self._live = Live(self, console=Console(), screen=True, auto_refresh=False)
        loop = asyncio.get_running_loop()
        for number in ENDS:
            loop.add_signal_handler(number, self._over.set)
        loop.add_signal_handler(signal.SIGWINCH, self._live.refresh)
        with _keys(), self._live:
            self._live.refresh()
            loop.add_reader(sys.stdin, self._pressed)
            threading.Thread(target=self._ask, args=(loop, looks), daemon=True, name="ask").start()
            await self._over.wait()

    def _pressed(self) -> None:
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys or b"q" in keys.lower() or b"\x03" in keys:
            self._over.set()

    def _take(self, answer: L | UserError) -> None:
        if isinstance(answer, UserError):
            self._trouble = answer.line()
        else:
            self._view = remembering(self._source.compare(answer, self._before), self._view)
            self._before, self._trouble = answer, ""
        self._live.refresh()

    def _ask(self, loop: asyncio.AbstractEventLoop, looks: Iterator[L]) -> None:
        """In its thread: take looks, without an end. Trouble passes when there is another daemon."""
        while True:
            answer: L | UserError
            try:
                answer = next(looks)
            except UserError as error:
                answer = error
            except Exception as error:  # whatever it is, the view continues and says so
                answer = UserError(f"{type(error).__name__}: {error}")
            if isinstance(answer, UserError):
                looks = self._source.looks(self._interval)
            with contextlib.suppress(RuntimeError):  # the view has ended
                loop.call_soon_threadsafe(self._take, answer)
            if isinstance(answer, UserError):
                time.sleep(min(self._interval, AGAIN))

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        """What fits the terminal as it is now."""
        tail = f"{time.strftime('%H:%M:%S')}, every {self._interval:g} s, q ends"
        lines = drawing(self._view, options.max_width, tail)
        if self._trouble:
            lines[1] = _text(self._trouble, options.max_width, "red")
        height = console.size.height
        if len(lines) > height:
            lines = [*lines[: height - 1], _text(f"{len(lines) - height + 1} more lines", options.max_width, "dim")]
        yield from lines


def drawing(view: Top, width: int, tail: str) -> "list[Text]":
    """The view in lines of at most this width: a headline, an empty line, the sections."""
    parts = sections(view, width)
    wide = widths(parts)
    lines = [_text(f"{headline(view)}, {tail}", width)]
    for part in parts:
        pads = [f"{'>' if column.right else '<'}{wide[column.title]}" for column in part.columns]
        head = (" " * GAP).join(format(column.title, pad) for column, pad in zip(part.columns, pads, strict=True))
        lines += [_text("", width), _text(head, width, "bold")]
        for row, cells in zip(part.rows, part.cells(), strict=True):
            line = _text("", width)
            for column, pad, cell in zip(part.columns, pads, cells, strict=True):
                style = COLOURS.get(row.shown_state, "red") if column.title == "STATE" else ""
                line.append(" " * GAP if line else "").append(format(cell, pad), style)
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
    if whys := waiting(view):
        lines += [_text("", width), *(_text(one, width, "yellow") for one in whys)]
    return lines if parts else [*lines, _text("", width), _text("nothing is running", width)]


def _text(words: str, width: int, style: str = "") -> "Text":
    from rich.text import Text

    text = Text(words, style, no_wrap=True, overflow="ellipsis")
    text.truncate(width, overflow="ellipsis")
    return text


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Keys come one by one and are not shown."""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
