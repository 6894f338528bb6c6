"""What is known of all files, in memory: a list of them reads from disk what is new since the last one.

Several processes share the folder. Each looks at the folder's time of change, and reads the names when it differs. A
record is written once and never changed.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .records import FileObject, FileRecord

SETTLED_NS = 100_000_000
"""Nanoseconds after which a change of the folder has a time of its own: file systems count time in ticks."""
READS_AT_ONCE = 50
"""Records that are read until the thread rests, since it shares the interpreter with the event loop."""
REST_S = 0.002
"""Seconds of that rest."""


class FileIndex:
    """All files of a folder. `read`: the record of a file on disk, None without one. Its calls belong in a thread."""

    def __init__(
        self,
        folder: Path,
        read: Callable[[str], FileRecord | None],
        now: Callable[[], int] = time.time_ns,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._read, self._now, self._rest = folder, read, now, rest
        self._lock = threading.Lock()
        self._seen = -1  # the folder's time of change that the index is as new as
        self._records: dict[str, FileRecord] = {}
        self._owners: dict[str, dict[str, FileRecord]] = {}
        self._sorted: dict[str, list[FileObject]] = {}  # of owners whose files have not changed since

    def files(self, owner: str) -> list[FileObject]:
        """Those of this owner, the newest first. The list is not to be changed."""
        with self._lock:
            self._refresh()
            found = self._sorted.get(owner)
            if found is None:
                records = sorted(self._owners.get(owner, {}).values(), key=lambda one: -one.order)
                found = self._sorted[owner] = [one.file for one in records]
            return found

    def refresh(self) -> None:
        """Read what is new, so that the next list has little to do."""
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
        self._sorted.pop(record.owner, None)

    def _forget(self, name: str) -> None:
        owner = self._records.pop(name).owner
        del self._owners[owner][name]
        if not self._owners[owner]:
            del self._owners[owner]
        self._sorted.pop(owner, None)
