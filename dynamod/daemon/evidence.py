"""What the kernel shows of a process that reports no progress: whether it computes, waits for a core, or reads.

A process whose engine holds the interpreter's lock sends no heartbeat while it computes, and on a busy machine a
process may wait seconds for a core. Both are slow, not stuck. A process that waits for its GPU is slow, too, where
NVML shows that the GPU computes for it.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from dynamod.observe.gpu_work import gpu_processes
from dynamod.observe.processes import PROC, family

WORKING_SHARE = 0.05
"""Share of a core that a process uses, or waits for, to count as working. Heartbeats alone take less."""
SAMPLE_INTERVAL_S = 0.5
"""Seconds between two samples of a process: enough for WORKING_SHARE to be more than two ticks of the CPU clock."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process and its descendants. `at`: monotonic seconds.

    `cpu`: CPU seconds of each process, with the children that it has waited for. `waiting`: seconds that each thread
    has waited for a core. `read`: bytes read from storage and major page faults, in sum.
    """

    at: float
    cpu: dict[int, float] = field(default_factory=dict[int, float])
    waiting: dict[int, float] = field(default_factory=dict[int, float])
    read: int = 0


def sample(pid: int, at: float, proc: Path = PROC) -> Sample:
    """Look at a process. What the kernel does not show, or has ended, is left out.

    A user's file that has started this daemon is its parent: the work of the daemon is none of the file's.
    """
    cpu: dict[int, float] = {}
    waiting: dict[int, float] = {}
    read = 0
    for one in family(pid, proc, without=os.getpid()):
        folder = proc / str(one)
        try:
            # man 5 proc: fields from the state on, which follows the name in parentheses.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            cpu[one] = sum(map(int, fields[11:15])) * _TICK_S
            read += int(fields[9])
            for task in (folder / "task").iterdir():
                waiting[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            continue
        try:
            counts = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
            read += int(counts["read_bytes"])
        except (OSError, ValueError, KeyError):
            continue
    return Sample(at, cpu, waiting, read)


@dataclass(slots=True)
class Evidence:
    """When a process was last seen to work. `worked`, `read`: monotonic seconds of the latest such look; None: never.

    `pid` 0: no process, which never works.
    """

    pid: int
    proc: Path = PROC
    worked: float | None = None
    read: float | None = None
    last: Sample | None = None

    def look(self, now: float, interval: float = SAMPLE_INTERVAL_S) -> None:
        """Compare the process with the last look. A look within `interval` seconds of the last one does nothing."""
        before = self.last
        if not self.pid or (before is not None and now - before.at < interval):
            return
        self.last = found = sample(self.pid, now, self.proc)
        if before is None:
            return
        least = WORKING_SHARE * (found.at - before.at)
        computes = _grown(before.cpu, found.cpu) >= least or _grown(before.waiting, found.waiting) >= least
        if computes or not found.cpu.keys().isdisjoint(gpu_processes(found.at - before.at)):
            self.worked = now
        if found.read > before.read and found.cpu.keys() <= before.cpu.keys():
            self.worked = self.read = now

    def forget(self) -> None:
        """The process has reported progress: the next look is the first one again."""
        self.last = None


def _grown(before: dict[int, float], now: dict[int, float]) -> float:
    """Seconds that were added; a process or thread that is new counts whole, one that has ended not at all."""
    return sum(seconds - before.get(one, 0.0) for one, seconds in now.items())
