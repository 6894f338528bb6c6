"""What the kernel knows of processes: CPU time and memory, from /proc."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from dynamod.observe.memory import proportional
from dynamod.observe.processes import PROC, family

from .answers import ProcessMemory, Vitals

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory(process: str, pid: int, listed: Collection[int], proc: Path = PROC) -> ProcessMemory:
    """The memory of a process.

    `listed`: pids of processes that have their own rows. Their families are no descendants here.
    """
    pids = {*family(pid, proc)}
    theirs = {one for other in listed if other != pid and other in pids for one in family(other, proc)}
    found = vitals(pids - theirs, proc)
    own = found.pop(str(pid), Vitals())
    return ProcessMemory(
        process=process,
        pid=pid,
        rss=own.rss,
        pss=proportional(pid, proc),
        descendants=sum(one.rss for one in found.values()),
    )


def vitals(pids: Iterable[int], proc: Path = PROC) -> dict[str, Vitals]:
    """By pid, as text. Processes that cannot be seen are left out."""
    found: dict[str, Vitals] = {}
    for pid in sorted(set(pids)):
        try:
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            cpu = (int(fields[11]) + int(fields[12])) / _TICK
            found[str(pid)] = Vitals(cpu, int(fields[21]) * _PAGE)
        except (OSError, ValueError, IndexError):
            continue
    return found
