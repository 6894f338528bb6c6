"""Progress on standard error: one line that is written over on a terminal, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable

PAUSE = 10.0
"""Seconds between two lines where they stay."""


def _write(text: str) -> None:
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        pass


class ProgressLine:
    """Shows the last text that it was given. `end` removes it from a terminal. `write`: to standard error."""

    def __init__(self, write: Callable[[str], object] = _write) -> None:
        self._write = write
        self._text = ""
        self._shown = -PAUSE

    def show(self, text: str) -> None:
        """The text as it is now, without a newline; an empty one ends it."""
        if not text:
            self.end()
        elif text != self._text:
            self._text = text
            if sys.stderr.isatty():
                self._write(f"\r\x1b[K{text}\r")  # what is printed next begins at the left
            elif (now := time.monotonic()) - self._shown >= PAUSE:
                self._shown = now
                self._write(f"{text}\n")

    def end(self, why: str = "") -> None:
        """Nothing more comes. `why`: the text stays, with this after it."""
        text, self._text = self._text, ""
        if text and why:
            self._write(f"\r\x1b[K{text}; {why}\n" if sys.stderr.isatty() else f"{text}; {why}\n")
        elif text and sys.stderr.isatty():
            self._write("\r\x1b[K")
