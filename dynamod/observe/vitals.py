"""What the kernel knows of processes: CPU time and memory, from /proc."""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from .processes import PROC

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Vitals(msgspec.Struct, frozen=True):
    """What the kernel knows of a process. `cpu`: seconds used so far. `rss`: bytes in memory."""

    cpu: float = 0.0
    rss: int = 0


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
