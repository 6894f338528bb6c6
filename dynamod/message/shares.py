"""The open connections of processes that accept at one socket, in memory that these processes share."""

import mmap
import os

PROCESSES = 64
"""Processes that can share a socket evenly. Further ones accept whatever comes."""

_CELL = 4  # bytes: 0 where no process is, else its connections and one


def shared_memory() -> int | None:
    """A descriptor of memory for the counts of the processes that will share a socket; None: the system has none."""
    if not hasattr(os, "memfd_create"):
        return None
    found = os.memfd_create("dynamod-clients")
    os.ftruncate(found, PROCESSES * _CELL)
    return found


def forget(memory: int, place: int) -> None:
    """The process at `place` is gone for good."""
    if place < PROCESSES:
        os.pwrite(memory, bytes(_CELL), place * _CELL)


class Shares:
    """Open connections of the processes that share a socket; this process is the one at `place`."""

    def __init__(self, memory: int, place: int) -> None:
        self._counts = memoryview(mmap.mmap(memory, PROCESSES * _CELL)).cast("i")
        self._place = place

    def join(self) -> None:
        """Accept from now on."""
        self._counts[self._place] = 1

    def opened(self) -> None:
        """Count a client that this process has accepted."""
        self._counts[self._place] += 1

    def closed(self) -> None:
        """A client of this process has left."""
        self._counts[self._place] = max(self._counts[self._place] - 1, 0)  # 0: it has left the others before

    def leave(self) -> None:
        """Accept no more."""
        self._counts[self._place] = 0

    def own(self) -> int:
        """Connections of this process, and one."""
        return self._counts[self._place]

    def fewest(self) -> int:
        """Those of the process that has the fewest, and one."""
        return min((count for count in self._counts if count), default=0)
