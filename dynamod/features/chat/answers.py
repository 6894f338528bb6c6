"""The answers of a batch: where they continue, and how they are written in the order of their prompts."""

import asyncio
import contextlib
import fcntl
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from dynamod.ingress.batch_lines import write_row
from dynamod.message.errors import UserError

from .entries import SUFFIX, Job, find_answers, has_answers

Item = TypeVar("Item")


class InOrder(Generic[Item]):
    """Passes items to `write` by their number, from 0. At most `window` numbers are under way from the first missing.

    One slow answer so holds up the others only when the window is full, and what waits for it is bounded.
    """

    def __init__(self, write: Callable[[Item], None], window: int) -> None:
        self._write, self._window = write, window
        self._waiting: dict[int, Item] = {}
        self._next = 0
        self._moved = asyncio.Event()

    async def room(self, number: int) -> None:
        """Wait until `number` is in the window."""
        while number >= self._next + self._window:
            self._moved.clear()
            await self._moved.wait()

    def put(self, number: int, item: Item) -> None:
        """Write the item, and the items that waited for it; or keep it until the ones before it are there."""
        self._waiting[number] = item
        while self._next in self._waiting:
            self._write(self._waiting.pop(self._next))
            self._next += 1
            self._moved.set()


class Outputs:
    """The output files of jobs, one open at a time, after what they hold already. Context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._job: Job | None = None
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def write(self, job: Job, fields: dict[str, Any]) -> None:
        """One line, which stands in the file when this returns. Raises UserError."""
        try:
            if job is not self._job or self._file is None:
                self._stack.close()
                self._file, self._job = self._stack.enter_context(_goes_on(job)), job
            write_row(self._file, fields)
        except OSError as error:
            raise UserError(f"{job.output}: {error.strerror}", "--resume continues where it ended") from None


def _open(job: Job) -> FileIO:
    """The output, which no other batch writes. Raises OSError, UserError."""
    file = job.output.open("ab", buffering=0)  # a buffer that a full disk refuses would be written at its end
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(f"another batch writes {job.output}", "wait for its end") from None
    except OSError:
        pass  # a file system without locks
    return file


def _goes_on(job: Job) -> FileIO:
    """The output, after its last answer that counts."""
    file = _open(job)
    if file.tell() != job.size:
        file.truncate(job.size)
    return file


def prepare(jobs: Sequence[Job], *, resume: bool, overwrite: bool) -> int:
    """Find out where each job continues, and how many prompts are left; a terminal is asked where no flag says it.

    Raises UserError for outputs that belong to other prompts, that are no regular files, or that cannot be written.
    """
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other", "give one")
    for job in jobs:
        # a pipe without a reader would block, and no such output can be cut to its last answer
        if job.output.exists() and not (job.output.is_file() or job.output.is_dir()):
            hint = "the answers need a file that --resume can read again: remove it, or rename the prompts"
            raise UserError(f"{job.output} is a device, a pipe or a socket", hint)
    there = [job for job in jobs if has_answers(job)]
    if there and not overwrite and (resume or _wants_more(there)):
        for job in there:
            find_answers(job)
    for job in jobs:
        try:
            _open(job).close()
        except OSError as error:
            raise UserError(f"{job.output}: {error.strerror}", "the answers are written next to the prompts") from None
    if len(jobs) == 1:
        _link(jobs[0].output)
    return sum(job.total - job.done for job in jobs)


def _link(output: Path) -> None:
    """`output.jsonl`, NVIDIA Dynamo's name, means the answers of the last file of prompts; a file of the name stays."""
    link = output.with_name(SUFFIX[1:])
    with contextlib.suppress(OSError):
        if link.is_symlink():
            link.unlink()
        link.symlink_to(output.name)


def _wants_more(there: Sequence[Job]) -> bool:
    """Whether the answers that are there stay. Raises UserError without a terminal, or for any other reply."""
    what = ", ".join(str(job.output) for job in there)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(f"there are answers in {what}", "--resume continues after them, --overwrite starts again")
    print(f"There are answers in {what}: [r]esume after them, [o]verwrite? ", end="", file=sys.stderr, flush=True)
    reply = sys.stdin.readline().strip().lower()
    if reply not in ("r", "resume", "o", "overwrite"):
        raise UserError("nothing was asked", f"{what} is as it was")
    return reply.startswith("r")
