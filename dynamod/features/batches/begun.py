"""Which lines of a batch were begun, on disk: a line at which the process dies twice is not asked a third time.

The file has a text line `+NUMBER` where a line of the batch is begun, and `-NUMBER` where work at it has stopped
without a death. Number 0 is the look at the whole input.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

MOST_DEATHS = 2
"""Deaths of processes at one line, after which it is answered with an error."""
INPUT = 0
"""The number that stands for the look at the whole input."""
_MARK = re.compile(rb"([+-])(\d{1,9})\n")


class Begun:
    """The marks of one batch. Raises OSError."""

    def __init__(self, path: Path, create: Callable[[Path], FileIO]) -> None:
        self._deaths: Counter[int] = Counter()
        if path.exists():
            for sign, number in _MARK.findall(path.read_bytes()):
                self._deaths[int(number)] += 1 if sign == b"+" else -1
        self._file = create(path)

    def deaths(self, number: int) -> int:
        """How many processes have died while they worked at a line."""
        return self._deaths[number]

    @contextmanager
    def working(self, number: int) -> Iterator[None]:
        """Marks a line as begun; the end of the block takes that back, a death of the process does not."""
        self._file.write(b"+%d\n" % number)
        try:
            yield
        finally:
            self._file.write(b"-%d\n" % number)

    def close(self) -> None:
        """Write no more marks."""
        self._file.close()
