"""A file of lines that is rotated by size and age. Processes may share it; it has whole lines only."""

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .shared_file import SharedFile

SUFFIX = ".jsonl"
_ODD = re.compile(r"[^\w.+@-]")
_ROTATED = re.compile(r"\.(\d{8}T\d{6})(?:-(\d+))?\.jsonl$")


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file is closed, and how many closed files are kept.

    `size`: bytes of a file. `period`: seconds; files end at multiples of it in Unix time, 86400 at midnight UTC; 0: the
    time does not count. `files`: closed files of each name.
    """

    size: int
    period: float
    files: int


class RotatedFile(SharedFile):
    """`FOLDER/NAME.jsonl`, and closed files `NAME.TIME.jsonl` alongside, TIME in UTC."""

    def __init__(self, folder: Path, name: str, rotation: Rotation) -> None:
        super().__init__(folder / f"{_ODD.sub('-', name)}{SUFFIX}")
        self._rotation = rotation

    def _fitting(self, lines: Sequence[bytes], first: int, size: int) -> int:
        """How many lines from `first` on go into the file of `size` bytes; 0: the file is to be closed."""
        period = self._rotation.period
        if size and period and os.fstat(self._fd).st_mtime // period < time.time() // period:
            return 0
        count = 0
        for line in lines[first:]:
            if size and size + len(line) > self._rotation.size:
                break
            size += len(line)
            count += 1
        return count

    def _roll(self) -> None:
        """Give the file the name of a closed one, and remove closed files above the limit."""
        closed, mark = closed_files(self.path), time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        when, number = _age(closed[-1]) if closed else ("", 0)
        if mark <= when:  # within one second, or the clock was set back: the names stay in order
            mark = f"{when}-{number + 1}"
        new = self.path.with_name(f"{self.path.name.removesuffix(SUFFIX)}.{mark}{SUFFIX}")
        self.path.rename(new)
        self.close()
        for old in [*closed, new][: -self._rotation.files]:
            old.unlink(missing_ok=True)


def is_closed(path: Path) -> Path | None:
    """The path of the current file, for that of a closed one; None for every other file."""
    match = _ROTATED.search(path.name)
    return path.with_name(path.name[: match.start()] + SUFFIX) if match is not None else None


def closed_files(path: Path) -> list[Path]:
    """The closed files of a rotated file, the oldest first."""
    found = [other for other in path.parent.glob(f"*{SUFFIX}") if is_closed(other) == path]
    return sorted(found, key=_age)


def _age(path: Path) -> tuple[str, int]:
    match = _ROTATED.search(path.name)
    return (match[1], int(match[2] or 0)) if match is not None else ("", 0)
