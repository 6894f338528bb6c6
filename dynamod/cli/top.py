"""`dynamo top`: a live view of all component processes in a terminal."""

import contextlib
import json
import os
import queue
import select
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from dynamod.message.errors import UserError

from .client import Control
from .tables import table
from .top_rows import Look, Top, top
from .top_table import GAP, age, sections, state, widths

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLOURS = {"Ready": "green", "Ready?": "yellow", "Draining": "yellow", "Starting": "yellow"}


def run(control: Control, interval: float, *, once: bool, output: str) -> int:
    """Show it: live on a terminal, else once. Returns the exit code."""
    if once or output == "json" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        before = Look(control.get("top"))
        time.sleep(interval)
        view = top(Look(control.get("top")), before)
        print(json.dumps(msgspec.to_builtins(view), indent=2) if output == "json" else plain(view))
        return 0
    _Live(control, interval).run()
    return 0


def plain(view: Top) -> str:
    """All columns as text tables."""
    parts = [table([column.title for column in part.columns], part.cells()) for part in sections(view)]
    return "\n".join([headline(view), *(parts or ["nothing is running"])])


def headline(view: Top) -> str:
    """The node in a line."""
    count = len(view.processes)
    return (
        f"dynamod {view.version} pid {view.pid} on {view.node}, up {age(view.uptime)}, "
        f"{count} process{'' if count == 1 else 'es'}"
    )


class _Live:
    """A thread asks the daemon, this one draws: keys and a new size are answered while a question is open."""

    def __init__(self, control: Control, interval: float) -> None:
        self._control, self._interval = control, interval
        self._answers: queue.SimpleQueue[Look | UserError] = queue.SimpleQueue()
        self._view: Top | None = None
        self._before: Look | None = None
        self._trouble = ""

    def run(self) -> None:
        """Draw until somebody presses q. Raises UserError when no daemon answers at the start."""
        from rich.console import Console
        from rich.live import Live

        self._take(Look(self._control.get("top")))
        console = Console()
        wake, woken = socket.socketpair()
        with wake, woken, _keys(), _signals(woken.fileno()):
            threading.Thread(target=self._ask, args=(woken,), daemon=True, name="ask").start()
            with Live(self, console=console, screen=True, auto_refresh=False) as live:
                while not self._ended(wake):
                    live.refresh()

    def _ended(self, wake: socket.socket) -> bool:
        """Wait for a key, a signal or an answer; whether it means the end."""
        ready, _, _ = select.select([wake, sys.stdin], [], [])
        if sys.stdin in ready:
            keys = os.read(sys.stdin.fileno(), 64)
            if not keys or b"q" in keys.lower() or b"\x03" in keys:
                return True
        if wake in ready and any(number in ENDS for number in wake.recv(64)):
            return True
        while not self._answers.empty():
            answer = self._answers.get()
            if isinstance(answer, Look):
                self._take(answer)
            else:
                self._trouble = answer.line()
        return False

    def _take(self, look: Look) -> None:
        self._view, self._before, self._trouble = top(look, self._before), look, ""

    def _ask(self, woken: socket.socket) -> None:
        """In its thread: a look every interval, for ever. Trouble passes when another takes the node's seat."""
        due = time.monotonic()
        while True:
            wait = due + self._interval - time.monotonic()
            due = time.monotonic() + max(0.0, wait)
            time.sleep(max(0.0, wait))
            try:
                self._answers.put(Look(self._control.get("top")))
            except UserError as error:
                self._answers.put(error)
            except Exception as error:  # whatever it is, the view goes on and says so
                self._answers.put(UserError(f"{type(error).__name__}: {error}"))
            try:
                woken.send(b"\0")
            except OSError:  # the view has ended
                return

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        """What fits the terminal as it is now."""
        assert self._view is not None
        lines = drawing(
            self._view, options.max_width, f"{time.strftime('%H:%M:%S')}, every {self._interval:g} s, q ends"
        )
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
                style = COLOURS.get(state(row), "red") if column.title == "STATE" else ""
                line.append(" " * GAP if line else "").append(format(cell, pad), style)
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
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


@contextlib.contextmanager
def _signals(descriptor: int) -> Iterator[None]:
    """Signals become bytes at a socket: the end, and a new size of the terminal."""
    os.set_blocking(descriptor, False)
    old_descriptor = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    old = {number: signal.signal(number, lambda *_: None) for number in (*ENDS, signal.SIGWINCH)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_descriptor)
