"""The start and the end of an engine that runs in processes of its own."""

import asyncio
import contextlib
import logging
import multiprocessing
import time
from collections.abc import Callable
from typing import TypeVar

from dynamod.message.errors import DynamodError

from .apart import Apart
from .output import StartOutput, one_line, reason, refers

log = logging.getLogger("dynamod.engine")
T = TypeVar("T")

SAID = 10.0
"""Seconds between two log lines about the same stage of the start."""
CLOSE = 0.8
"""Seconds that the engine's processes get to end: a component has one. The daemon kills what is left of the group."""
REASON = 500
"""Characters of the engine's reason: it may list all models that it knows."""


class EngineEnded(DynamodError):
    """The engine's processes have ended: the worker ends too, and its supervisor starts it again."""


class EngineProcesses:
    """`name`: of the engine, `product`: as it is written for users."""

    def __init__(self, name: str, product: str) -> None:
        self._name, self._product = name, product
        self._apart = Apart(name)
        self._output: StartOutput | None = None
        self._progress: Callable[[str], None] = lambda _text: None

    def read_output(self, progress: Callable[[str], None]) -> StartOutput:
        """Read from now on what the engine prints while it starts. `progress(text)`: shows a stage to users."""
        self._progress = progress
        self._output = output = StartOutput(notes=log.isEnabledFor(logging.DEBUG))
        return output

    async def stage(self, what: str, work: Callable[[], T]) -> T:
        """Do a part of the start in a thread, and show what it is and since when."""
        began, future = time.monotonic(), self._apart.do(work)
        self._progress(f"{self._name} {what}, since {time.strftime('%H:%M:%S')}")
        while not (await asyncio.wait([future], timeout=SAID))[0]:
            log.info("%s %s, for %.0f s", self._name, what, time.monotonic() - began)
        return future.result()

    async def why(self, error: Exception) -> str:
        """The reason for a failed start: what the engine has printed, where the error refers to that."""
        await asyncio.sleep(0.1)  # the last lines of its processes
        lines = self._output.lines if self._output is not None else ()
        why = (reason(lines) if refers(str(error)) else "") or one_line(error)
        return f"{why[:REASON]} ..." if len(why) > REASON else why

    def ended(self) -> EngineEnded:
        """The error for processes that have ended, perhaps with a reason in what they have printed."""
        why = reason(self._output.lines) if self._output is not None else ""
        return EngineEnded(f"{self._product}'s engine process has ended{f' ({why})' if why else ''}")

    async def shut_down(self, work: Callable[[], object] | None) -> None:
        """End the processes; None: the engine is still loading. Python would wait for them at the end."""
        if work is None:
            for child in multiprocessing.active_children():
                child.kill()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE):
                await self._apart.do(work)
