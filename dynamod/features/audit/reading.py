"""Reads the files of a node: entries of all processes in the order in which they ended."""

import heapq
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dynamod.message.errors import UserError
from dynamod.observe.rotated import SUFFIX, closed_files, is_closed

from .commands import AuditArguments

SINCE = "give a duration like 30s, 15m, 1h30m, 2d or 1w, or a time like 2026-01-31 or 2026-01-31T12:00:00Z"
STATUS = "give a status like 404 or a class like 4xx"
_UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:\d{1,9}[wdhms])+", re.ASCII)
_PART = re.compile(r"(\d+)([wdhms])", re.ASCII)

Entry = dict[str, Any]
"""A line of a file: of `RequestLine`, `CommandLine` or `DroppedLine`."""


def moment(text: str, now: datetime, flag: str = "--since") -> datetime:
    """The time that a text names: so long before `now`, or a date or time of ISO 8601, in UTC unless it says another.

    Raises UserError.
    """
    text = text.strip()
    try:
        if _DURATION.fullmatch(text):
            return now - timedelta(seconds=sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(text)))
        if text[:4].isdecimal() and "-" in text:
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        pass
    raise UserError(f"{flag} is {text!r}", SINCE)


def statuses(text: str) -> range:
    """The statuses that `404` or `4xx` names. Raises UserError."""
    if match := re.fullmatch(r"([1-5])xx", text.lower()):
        return range(int(match[1]) * 100, int(match[1]) * 100 + 100)
    if re.fullmatch(r"[1-5]\d\d", text, re.ASCII):
        return range(int(text), int(text) + 1)
    raise UserError(f"--status is {text!r}", STATUS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries are wanted; an empty text and None: all."""

    since: datetime | None = None
    until: datetime | None = None
    key: str = ""
    model: str = ""
    status: range | None = None
    kind: str = ""

    def __contains__(self, entry: Entry) -> bool:
        time = entry["time"]
        return (
            (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
            and self.key in ("", entry.get("key"))
            and self.model in ("", entry.get("model"))
            and (self.status is None or entry.get("status") in self.status)
            and self.kind in ("", entry["kind"])
        )


def wanted_of(arguments: AuditArguments, now: datetime) -> Wanted:
    """The entries that flags ask for. Raises UserError."""
    return Wanted(
        moment(arguments.since, now) if arguments.since else None,
        moment(arguments.until, now, "--until") if arguments.until else None,
        arguments.key,
        arguments.model,
        statuses(arguments.status) if arguments.status else None,
        arguments.kind,
    )


class Files:
    """The audit files of some folders. `unreadable`: lines that were no entries, so far."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self.unreadable = 0

    def entries(self, wanted: Wanted) -> Iterator[Entry]:
        """The wanted entries in the order of time. Raises UserError for a file that cannot be read."""
        return merged([self._of(path, wanted) for path in self.names()])

    def names(self) -> Sequence[Path]:
        """The current file of each process, of those too that have only closed files."""
        found: dict[Path, None] = {}
        for folder in self._folders:
            for path in sorted(folder.glob(f"*{SUFFIX}")) if readable(folder) else ():
                found[is_closed(path) or path] = None
        return list(found)

    def _of(self, path: Path, wanted: Wanted) -> Iterator[Entry]:
        """The wanted entries of one process."""
        current = _opened(path)
        inode = os.fstat(current.fileno()).st_ino if current is not None else 0
        for old in closed_files(path):
            file = _opened(old)
            if file is None:
                continue
            with file:
                facts = os.fstat(file.fileno())
                over = wanted.since is not None and facts.st_mtime < wanted.since.timestamp()
                if facts.st_ino != inode and not over:  # the same: closed a moment ago, and read as the current one
                    yield from self._lines(file, wanted)
        if current is not None:
            with current:
                yield from self._lines(current, wanted)

    def _lines(self, file: BinaryIO, wanted: Wanted) -> Iterator[Entry]:
        for line in file:
            try:
                entry = msgspec.json.decode(line, type=Entry)
                entry["time"] = datetime.fromisoformat(entry["time"]).astimezone(UTC)
                if entry in wanted:
                    yield entry
            except (
                msgspec.DecodeError,
                ValueError,
                KeyError,
                TypeError,
            ):  # the disk was full, or the line is being written now
                self.unreadable += 1


def merged(sources: Sequence[Iterator[Entry]]) -> Iterator[Entry]:
    """Entries of several sources, each in the order in which they ended, as one.

    The entries of another node, which its daemon answers (`commands.AUDIT`), may be a source.
    """
    return heapq.merge(*sources, key=ended)


def told(entries: Iterable[Entry], node: str) -> Iterator[Entry]:
    """The entries that the daemon of `node` has answered, as `Files` has them. Entries of commands get its name."""
    for entry in entries:
        yield {"node": node, **entry, "time": datetime.fromisoformat(entry["time"]).astimezone(UTC)}


def ended(entry: Entry) -> datetime:
    """When what an entry says was over: entries are written then."""
    time: datetime = entry["time"]
    return time + timedelta(milliseconds=entry.get("duration_ms", 0))


def readable(folder: Path) -> bool:
    """Whether the folder is there. Raises UserError when it may not be read."""
    try:
        with os.scandir(folder):
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(folder, error) from None


def _opened(path: Path) -> BinaryIO | None:
    """The file; None: it has been removed, or there is none. Raises UserError."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot read {path}: {error.strerror}", "ask as the user of the daemon, or use sudo", exit_code=1)
