"""A command that a test has started, and its end: with everything below it, within the promised time."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .processes import Pid, described, tree
from .result import Result
from .warm import Started, Warm

if TYPE_CHECKING:
    from .conftest import Machine

SLOW = 60.0
"""Seconds for what has no promised bound: machines of continuous integration may be busy."""

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = SLOW, what: str = "") -> T:
    """Wait for something that other processes bring about; returns what the condition gave."""
    end, pause = time.monotonic() + seconds, 0.01
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.05)  # a long wait takes little from the processes that it waits for
    return value


class Command:
    """A command that runs; its output goes to files."""

    def __init__(
        self,
        machine: "Machine",
        argv: list[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        deaf: bool = False,
        forks: Warm | None = None,
        words: Sequence[str] = (),
    ) -> None:
        self.machine, self.words = machine, [*words]  # without the command's own name
        self._out, self._err = (machine.folder / f"{len(machine.commands)}.{name}" for name in ("out", "err"))
        self._popen: subprocess.Popen[bytes] | Started
        with self._out.open("wb") as out, self._err.open("wb") as err:
            if deaf:  # a pipe whose reader has left
                reader, writer = os.pipe()
                os.close(reader)
            stdout = writer if deaf else out.fileno()
            if forks is not None:
                self._popen = forks.start(argv, env, cwd, stdout, err.fileno())
            else:
                self._popen = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=err, env=env, cwd=cwd, start_new_session=True
                )
            if deaf:
                os.close(writer)
        self.pid = self._popen.pid
        self.seen: set[Pid] = set()

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self._popen.poll()

    def tree(self) -> set[Pid]:
        """It and what it runs now; all that were ever seen must be gone in the end.

        The daemon that it has started counts while no other command uses it, and never what others run there.
        """
        now = tree(self.pid)
        if self.machine.shared_by_others(self):
            for daemon in self.machine.find_daemons():
                if daemon.pid != self.pid:
                    now -= tree(daemon.pid)
            own = f" pid {self.pid}"
            for row in self.machine.ps():
                if row["session"].endswith(own) and row["pid"] != self.pid:  # else its daemon would count again
                    now |= tree(row["pid"])
        self.seen |= now
        return now

    def prints(self, pattern: str, seconds: float = SLOW) -> "re.Match[str]":
        """Wait until stdout holds the pattern."""

        def look() -> "re.Match[str] | None":
            match = re.search(pattern, self.out)
            assert match or self.code is None, f"ended with {self.code}: {self.err}"
            return match

        match = until(look, seconds, f"{pattern} in output of {self._popen.args}\n{self.err}")
        self.tree()
        return match

    def ready(self, seconds: float = SLOW) -> str:
        """Wait until its graph is ready; returns the URL (empty without one)."""
        return self.prints(r"\S+ ready(?:: (\S+))?\n", seconds)[1] or ""

    def send(self, number: int) -> float:
        """Send a signal; returns the time."""
        self.tree()
        self._popen.send_signal(number)
        return time.monotonic()

    def wait(self, seconds: float = 10.0) -> Result:
        """Wait for its end."""
        code = self._popen.wait(seconds)
        return Result(code, self.out, self.err)

    def end(self, number: int = signal.SIGINT, bound: float = 5.0) -> Result:
        """End it in good order, within the promised bound, with everything below it."""
        started = self.send(number)
        try:
            self._popen.wait(bound + 1)
        except subprocess.TimeoutExpired:
            lived = "\n".join(described(pid.pid) for pid in self.tree())
            os.kill(self.pid, signal.SIGUSR1)  # a daemon writes the stacks of its threads
            time.sleep(0.2)
            message = f"{self._popen.args} did not end within {bound + 1:g} s; these live:\n{lived}"
            raise AssertionError(message) from None
        self.gone(bound - (time.monotonic() - started))
        return Result(self._popen.returncode, self.out, self.err)

    def gone(self, seconds: float) -> None:
        """Every process seen below it is gone within the time."""
        left = self.seen - (self.machine.find_daemons() if self.machine.shared_by_others(self) else set())
        until(lambda: not any(pid.lives for pid in left), max(0.1, seconds), f"the end of {left}")

    def kill(self) -> None:
        """Whatever is left: for the end of a test that failed."""
        self.tree()
        for pid in self.seen:
            if pid.lives:
                os.kill(pid.pid, signal.SIGKILL)
        self._popen.wait(5)
