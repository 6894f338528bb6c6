"""The answers of a batch in two files. After the death of a process the next process continues both files."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from dynamod.ingress.batch_lines import write_row

from .records import BatchRecord, Counts
from .store import Store

COMPLETED, FAILED = "completed", "failed"
"""Values of the metric label `status`, by which lines are counted."""
MOST_DEATHS = 2
"""Deaths of processes at one line, after which the answer to the line is an error."""
INPUT = 0
"""The number of the check of the whole input."""
_MARK = re.compile(rb"([+-])(\d{1,9})\n")


class Progress:
    """The open files of one batch, a context manager. Raises OSError. `done`: numbers of the lines that have answers.

    `answered`: counts answers that this process writes, of all batches.
    """

    def __init__(self, store: Store, record: BatchRecord, answered: Counter[str]) -> None:
        self._paths = store.data(record.output), store.data(record.error)
        self._create = store.create
        self._prefix = f"batch_req_{record.batch.id.removeprefix('batch_')}_"
        self._stack = ExitStack()
        self._files: list[FileIO] = []
        self.counts, self._answered = Counts(), answered
        self.done: set[int] = set()

    def __enter__(self) -> Self:
        found = [_whole_lines(path, self._prefix) for path in self._paths]
        self._files = [self._stack.enter_context(self._create(path)) for path in self._paths]
        self.counts.completed, self.counts.failed = len(found[0]), len(found[1])
        self.done = found[0] | found[1]
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def name(self, number: int) -> str:
        """The id of the answer to a line."""
        return f"{self._prefix}{number}"

    def write(self, number: int, row: dict[str, Any], *, good: bool) -> None:
        """Write the answer to a line; the file has the answer when the call returns. Raises OSError."""
        write_row(self._files[not good], row)
        self.done.add(number)
        self._answered[COMPLETED if good else FAILED] += 1
        if good:
            self.counts.completed += 1
        else:
            self.counts.failed += 1

    def sync(self) -> None:
        """Bring all answers to the disk."""
        for file in self._files:
            os.fsync(file.fileno())


class _Row(msgspec.Struct):
    id: str


_row = msgspec.json.Decoder(_Row).decode  # does not decode the answer, which may be long


def _whole_lines(path: Path, prefix: str) -> set[int]:
    """Numbers of the lines that have answers in a file. Cuts an incomplete line off the file."""
    found, size = set[int](), 0
    if not path.exists():
        return found
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                found.add(int(_row(line).id.removeprefix(prefix)))
            except ValueError:
                break  # blocks that were never written, because the machine lost power
            size += len(line)
    os.truncate(path, size)
    return found


class Begun:
    """Marks of begun lines, on disk: a line at which two processes have died is not asked a third time.

    The file has a text line `+NUMBER` where a line of the batch is begun, and `-NUMBER` where work at the line has
    stopped without a death. Number 0 is the check of the whole input. Raises OSError.
    """

    def __init__(self, path: Path, create: Callable[[Path], FileIO]) -> None:
        self._deaths: Counter[int] = Counter()
        if path.exists():
            for sign, number in _MARK.findall(path.read_bytes()):
                self._deaths[int(number)] += 1 if sign == b"+" else -1
        self._file = create(path)

    def deaths(self, number: int) -> int:
        """Number of processes that have died while they worked at a line."""
        return self._deaths[number]

    @contextmanager
    def working(self, number: int) -> Iterator[None]:
        """Mark a line as begun. The end of the block takes the mark back, the death of the process does not."""
        self._file.write(b"+%d\n" % number)
        try:
            yield
        finally:
            self._file.write(b"-%d\n" % number)

    def close(self) -> None:
        """Close the file of marks."""
        self._file.close()
