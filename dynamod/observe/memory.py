"""Memory of processes, what will be given back of it, and sizes as people write them."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from .processes import PROC, family

_SIZES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


_returned: ContextVar[int] = ContextVar("returned", default=0)


def resident(pid: int, proc: Path = PROC, *, own: bool = False) -> int:
    """Bytes of a process and its descendants; 0 when it has ended, or where the kernel does not tell.

    `own`: without what others may have too, such as files that are read again; so much is free when they end.
    """
    return sum(_resident(one, proc, own) for one in family(pid, proc))


def _resident(pid: int, proc: Path, own: bool) -> int:
    try:
        pages = [int(text) for text in (proc / str(pid) / "statm").read_text().split()]
        return (pages[1] - pages[2] * own) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def proportional(pid: int, proc: Path = PROC) -> int | None:
    """Bytes of a process alone, where each page counts by the number of processes that share the page.

    None when the process has ended, or where the kernel does not tell.
    """
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


@contextmanager
def replacing(pids: Iterable[int]) -> Iterator[None]:
    """Meanwhile `returned()` has what these processes hold: they end before those start that are looked at."""
    token = _returned.set(sum(resident(pid, own=True) for pid in {*pids}))
    try:
        yield
    finally:
        _returned.reset(token)


def returned() -> int:
    """Bytes that will be free because processes are replaced."""
    return _returned.get()


def size(value: int | str) -> int:
    """Bytes of a number, or of text like `16GiB` (powers of 1024) or `16GB` (powers of 1000). Raises ValueError."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", value.strip().lower())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{value!r} is no size; write bytes, or like 800MB or 4.5GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _SIZES[match[2]])
