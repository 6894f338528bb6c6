"""Processes as the kernel lists them in /proc."""

from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def family(pid: int, proc: Path = PROC, *, without: int = 0) -> Iterator[int]:
    """A process and its descendants, without the process `without` and its descendants.

    A kernel that does not list children (CONFIG_PROC_CHILDREN) shows no descendants.
    """
    if pid == without:
        return
    yield pid
    try:
        tasks = [task / "children" for task in (proc / str(pid) / "task").iterdir()]
        children = [int(child) for task in tasks if task.exists() for child in task.read_text().split()]
    except (OSError, ValueError):
        return
    for child in children:
        yield from family(child, proc, without=without)
