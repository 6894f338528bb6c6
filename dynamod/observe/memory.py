"""Resident memory of processes, and sizes as people write them."""

import os
import re
from pathlib import Path

_SIZES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def resident(pid: int, proc: Path = Path("/proc")) -> int:
    """Bytes of a process and its descendants; 0 when it has ended, or where nobody tells."""
    try:
        found = int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        tasks = [task / "children" for task in (proc / str(pid) / "task").iterdir()]
        children = [int(child) for task in tasks if task.exists() for child in task.read_text().split()]
    except (OSError, ValueError, IndexError):
        return 0
    return found + sum(resident(child, proc) for child in children)


def size(value: int | str) -> int:
    """Bytes of a number, or of text like `16GiB` (powers of 1024) or `16GB` (powers of 1000). Raises ValueError."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", value.strip().lower())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{value!r} is no size; write bytes, or like 800MB or 4.5GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _SIZES[match[2]])
