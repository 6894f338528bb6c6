"""Records of all files, in memory. A list of files reads from disk only the records that are new since the last list.

Several processes share the folder. Each process compares the folder's time of change, and reads the names when the
time differs. A record is written once and never changed.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from .records import FileObject, FileRecord

SETTLED_NS = 100_000_000
"""Nanoseconds after which a later change of the folder has another time: file systems count time in ticks."""
READS_AT_ONCE = 50
"""Records that are read between two rests: the thread shares the interpreter with the event loop."""
REST_S = 0.002
"""Seconds of a rest."""


class FileIndex:
    """All files of a folder. `read`: the record of a file on disk, or None. Methods block: call them in a thread."""

    def __init__(
        self,
        folder: Path,
        read: Callable[[str], FileRecord | None],
        now: Callable[[], int] = time.time_ns,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._read, self._now, self._rest = folder, read, now, rest
        self._lock = threading.Lock()
        self._seen = -1  # time of change of the folder when the index was read
        self._records: dict[str, FileRecord] = {}
        self._owners: dict[str, dict[str, FileRecord]] = {}  # of files that have not expired
        self._expiring: set[str] = set()  # files of these that will expire
        self._sorted: dict[str | None, list[FileObject]] = {}  # by owner, until a file of the owner changes

    def files(self, owner: str | None) -> list[FileObject]:
        """Files of an owner, the newest first; None: of all owners. Callers must not change the list."""
        with self._lock:
            self._refresh()
            self._hide()
            found = self._sorted.get(owner)
            if found is None:
                kept = self._owners.values() if owner is None else [self._owners.get(owner, {})]
                records = sorted([record for one in kept for record in one.values()], key=lambda one: -one.order)
                found = self._sorted[owner] = [one.file for one in records]
            return found

    def use(self) -> dict[str, tuple[int, int]]:
        """Number and bytes of the files of each owner."""
        with self._lock:
            self._refresh()
            self._hide()
            return {
                owner: (len(kept), sum(one.file.bytes for one in kept.values())) for owner, kept in self._owners.items()
            }

    def expired(self) -> set[str]:
        """Files on disk that have expired."""
        with self._lock:
            self._refresh()
            self._hide()
            return {name for name, one in self._records.items() if name not in self._owners.get(one.owner, {})}

    def refresh(self) -> None:
        """Read new records, so that the next list is quick."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        changed, began = os.stat(self._folder).st_mtime_ns, self._now()
        if changed == self._seen:
            return
        names = {name[:-5] for name in os.listdir(self._folder) if name.endswith(".json")}
        for name in self._records.keys() - names:
            self._forget(name)
        for count, name in enumerate(names - self._records.keys(), 1):
            if (record := self._read(name)) is not None:
                self._add(name, record)
            if count % READS_AT_ONCE == 0:
                self._rest(REST_S)
        self._seen = changed if began - changed > SETTLED_NS else -1

    def _add(self, name: str, record: FileRecord) -> None:
        self._records[name] = record
        self._owners.setdefault(record.owner, {})[name] = record
        if record.file.expires_at is not msgspec.UNSET:
            self._expiring.add(name)
        self._changed(record.owner)

    def _forget(self, name: str) -> None:
        self._remove(name, self._records.pop(name).owner)

    def _hide(self) -> None:
        now = self._now() / 10**9
        for name in [one for one in self._expiring if self._records[one].file.expired(now)]:
            self._remove(name, self._records[name].owner)

    def _remove(self, name: str, owner: str) -> None:
        self._expiring.discard(name)
        kept = self._owners.get(owner, {})
        kept.pop(name, None)
        if not kept:
            self._owners.pop(owner, None)
        self._changed(owner)

    def _changed(self, owner: str) -> None:
        for one in (owner, None):
            self._sorted.pop(one, None)
