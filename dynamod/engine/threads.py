"""How many threads an engine computes with on a CPU, where the user gives no number."""

import os
from collections.abc import MutableMapping
from pathlib import Path

OPENMP = "OMP_NUM_THREADS"
RAYON = "RAYON_NUM_THREADS"
_CORES = Path("/sys/devices/system/cpu")


def openmp_threads() -> int:
    """OMP_NUM_THREADS, else the processor cores that this process may use (two threads of a core count once)."""
    return _given(os.environ.get(OPENMP)) or cores()


def set_rayon_threads(environ: MutableMapping[str, str] = os.environ) -> int:
    """Set RAYON_NUM_THREADS before rayon starts, unless the user has; returns the number.

    OMP_NUM_THREADS counts where only that is given. The default is one less than the cores, and at least 1: threads of
    rayon spin while they wait for each other, and one that has to share its core with another process stops all.
    """
    number = _given(environ.get(RAYON)) or _given(environ.get(OPENMP)) or max(1, cores() - 1)
    environ[RAYON] = str(number)
    return number


def cores() -> int:
    """Processor cores that this process may use (two threads of a core count once)."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return max(1, len({_siblings(number) for number in allowed}))


def _given(text: str | None) -> int:
    """The number, 0 for none."""
    return int(text) if text and text.isdecimal() else 0


def _siblings(number: int) -> str:
    try:
        return (_CORES / f"cpu{number}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(number)
