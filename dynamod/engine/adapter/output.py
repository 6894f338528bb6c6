"""What an engine's processes print while they start: passed on, and searched for the reason when they fail."""

import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dynamod.observe.bounded import bounded

KEPT = 1000
"""Lines; a traceback of several processes has some hundreds."""

_MARK = re.compile(
    r"^(?:\([^)]*\)\s*)?(?:[A-Z]+ [\d-]+ [\d:.]+ \[[^\]]*\]\s?)?(?:\[[^\]]*\]\s?)?(?:[\w ]*Exception: )?"
)
"""vLLM's and SGLang's marks before a line: process, level, time, file."""
_RAISED = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|OutOfMemory)\w*): (.+)")
_ELSEWHERE = re.compile(
    r"root cause|stack ?trace|background process|initialization failed|Engine core|died during", re.IGNORECASE
)


_NOTE = re.compile(rb"^(?:\([^)]*\) ?)?(?:\[[^\]]*\] ?)?(?:WARNING|INFO|DEBUG)\b|^(?:\S+:\d+: )?\w*Warning: ")
"""Lines of vLLM, SGLang and their libraries that are no errors, perhaps with a process or a library in front."""


class StartOutput:
    """While open, file descriptors 1 and 2 lead through us, also those of processes that are started meanwhile.

    Those keep theirs until they end, so a thread passes their lines on until all have ended. `notes`: whether warnings
    and notes of the start are passed on, too: they are many, and about choices that users do not make.
    """

    def __init__(self, *, notes: bool = True) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT)
        bounded(self, "output of the engine's start", KEPT, lambda one: len(one.lines), "lines")
        self._notes = notes
        self._saved = [os.dup(1), os.dup(2)]
        reader, writer = os.pipe()
        for number in (1, 2):
            os.dup2(writer, number)
        os.close(writer)
        threading.Thread(target=self._pass_on, args=(reader, os.dup(self._saved[1])), daemon=True).start()

    def close(self) -> None:
        """Our own output goes where it went before, and all lines are passed on."""
        self._notes = True
        for number, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, number)
            os.close(saved)
        self._saved = []

    def _pass_on(self, reader: int, writer: int) -> None:
        with open(reader, "rb") as lines:
            for line in lines:
                self.lines.append(line.decode(errors="replace").rstrip())
                if not self._notes and _NOTE.match(line):
                    continue
                try:
                    os.write(writer, line)
                except OSError:  # there is no reader: the engine must not wait for one
                    pass
        os.close(writer)


def refers(error: str) -> bool:
    """Whether an error only says that another process has failed."""
    return _ELSEWHERE.search(error) is not None


def reason(lines: Iterable[str]) -> str:
    """The last error that was raised and does not only refer to another one; empty when there is none."""
    found = ""
    for line in lines:
        match = _RAISED.match(_MARK.sub("", line))
        if match is not None and not refers(match[2]):
            found = f"{match[1].rpartition('.')[2]}: {match[2]}"
    return found


def _problem(error: Mapping[str, Any]) -> str:
    """One of pydantic's, with the field that it is about."""
    place = ".".join(str(part) for part in error["loc"])
    return f"{place}: {error['msg']}" if place else str(error["msg"]).removeprefix("Value error, ")


def one_line(error: BaseException) -> str:
    """What an exception says, without the places that pydantic adds after its messages."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        return " ".join("; ".join(_problem(one) for one in errors()).split())
    return " ".join(str(error).split()) or type(error).__name__
