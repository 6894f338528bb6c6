"""Files and batches in a folder, which several frontends may share.

`files/ID.data` holds the bytes of a file. `files/ID.json` is the record and is written last: clients see only files
with a record. The holder of `batches/ID.lock` writes `batches/ID.json` and `batches/ID.begun`. `batches/ID.cancel`
asks for the end of a batch.
"""

import contextlib
import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from io import FileIO
from pathlib import Path
from typing import TypeVar

import msgspec

from dynamod.ingress.own_folder import check_format, own_folder
from dynamod.message.errors import NotFound, RequestError, TooLarge

from .index import FileIndex
from .records import ENDED, BatchRecord, FileObject, FileRecord, StoreFull, gone, room_on_disk

FORMAT = 1
"""Format of files and records. A change that older releases would misread raises the number and migrates old files."""
FILES, BATCHES = 10_000, 10_000
"""Most files and most batches."""
ABANDONED = 3600.0
"""Seconds without a new byte after which an upload counts as abandoned."""
T = TypeVar("T")
_FILE, _BATCH = re.compile(r"file-[0-9a-f]{32}"), re.compile(r"batch_[0-9a-f]{32}")


class StoreInUse(RequestError):
    """409: a batch reads the file, or works."""

    status = 409
    kind = "invalid_request_error"
    code_default = "file_in_use"


class Store:
    """At most `limit` bytes of files below `folder`. Raises UserError for a folder that other users may read."""

    def __init__(self, folder: str, limit: int) -> None:
        self.limit = limit
        self.urls: Collection[str] = ()
        """Routes that lines may ask; known when the HTTP server is made."""
        self._ended: set[str] = set()  # ids of batches that have ended
        root = own_folder(folder, "batches_dir", "files", "batches")
        check_format(root, "batches_dir", FORMAT)
        self._files, self._batches = root / "files", root / "batches"
        self._index = FileIndex(self._files, lambda name: self._read(self._files, _FILE, name, FileRecord))

    def used(self) -> int:
        """Bytes of all files, also of incomplete ones."""
        size = 0
        for entry in os.scandir(self._files):
            if not entry.name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError):  # another process has deleted the file
                    size += entry.stat().st_size
        return size

    def check_room(self, more: int = 0) -> int:
        """Bytes that still fit. Raises TooLarge when they are less than `more`."""
        room = self.limit - self.used()
        if room < more:
            text = f"the files of batches would take more than {self.limit / 1048576:g} MB, the limit of this server"
            raise TooLarge(f"{text}; delete some")
        return room

    def check_count(self) -> None:
        """Raise StoreFull when there are too many files."""
        if sum(1 for _ in os.scandir(self._files)) >= 2 * FILES:
            raise StoreFull(f"there are {FILES} files; delete some")

    # files

    def data(self, name: str) -> Path:
        """Path of the bytes of a file. `name`: a checked id."""
        return self._files / f"{name}.data"

    def upload(self, name: str) -> Path:
        """Path of an incomplete upload."""
        return self._files / f"{name}.part"

    def create(self, path: Path) -> FileIO:
        """Open a file for appending, with mode 0600. Raises OSError."""
        return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")

    def add(self, record: FileRecord) -> None:
        """Make a complete file visible."""
        self._write(self._files / f"{record.file.id}.json", record)

    def show(self, part: Path, owner: str, file: FileObject) -> None:
        """Make the file visible whose bytes are in `part`. Raises StoreFull; then nothing of it is kept.

        Blocks.
        """
        data = self.data(file.id)
        os.replace(part, data)
        try:
            with room_on_disk():
                self.add(FileRecord(owner, time.time_ns(), file))
        except BaseException:
            data.unlink(missing_ok=True)
            raise

    def file(self, name: str, owner: str | None) -> FileObject:
        """A file of an owner; None: of any owner. Raises NotFound."""
        record = self._read(self._files, _FILE, name, FileRecord)
        if record is None or owner not in (None, record.owner) or record.file.expired(time.time()):
            raise gone(name)
        return record.file

    def files(self, owner: str | None) -> list[FileObject]:
        """Files of an owner, the newest first; None: of all owners. Callers must not change the list. Blocks."""
        return self._index.files(owner)

    def use(self) -> tuple[dict[str, tuple[int, int]], Counter[str]]:
        """Number and bytes of the files of each owner, and the batches in work. Blocks."""
        return self._index.use(), Counter(one.owner for one in self.unfinished())

    def prepare(self) -> None:
        """Remove the remains of earlier processes, then fill the index of files. Blocks long: call it in a thread."""
        self.sweep()
        self._index.refresh()

    def delete(self, name: str, owner: str | None) -> None:
        """Delete a file of an owner; None: of any owner. Raises NotFound, StoreInUse."""
        self.file(name, owner)
        self._require_unread(name)
        self._unlink(name)

    def expire(self) -> int:
        """Delete files that have expired, but no input of a batch that has not ended; returns how many. Blocks."""
        names = self._index.expired()
        read = {one.batch.input_file_id for one in self.unfinished()} if names else set()
        for name in names - read:
            self._unlink(name)
        return len(names - read)

    def _unlink(self, name: str) -> None:
        for path in (self._files / f"{name}.json", self.data(name)):
            path.unlink(missing_ok=True)

    def _require_unread(self, name: str) -> None:
        for record in self.batches(None):
            if record.batch.input_file_id == name and record.batch.status not in ENDED:
                raise StoreInUse(f"the file `{name}` is read by {record.batch.id}; cancel that first", param="id")

    def sweep(self) -> None:
        """Remove abandoned uploads and the remains of writes that a crash has interrupted."""
        old = time.time() - ABANDONED
        working = {name for one in self.unfinished() for name in (one.output, one.error)}
        for folder in (self._files, self._batches):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    name, _, kind = entry.name.rpartition(".")
                    hidden = kind == "data" and name not in working and not (folder / f"{name}.json").exists()
                    if (kind in ("part", "new") or hidden) and entry.stat().st_mtime < old:
                        os.unlink(entry.path)

    # batches

    def put(self, record: BatchRecord) -> None:
        """Write a batch."""
        self._write(self._batches / f"{record.batch.id}.json", record)

    def add_batch(self, record: BatchRecord) -> None:
        """Write a new batch; the oldest that has ended makes room. Raises StoreFull."""
        known = self.batches(None)
        if len(known) >= BATCHES:
            if (old := next((one.batch for one in reversed(known) if one.batch.status in ENDED), None)) is None:
                raise StoreFull(f"{BATCHES} batches are in work; wait for some")
            self._forget(old.id)
        self.put(record)

    def remove_batch(self, record: BatchRecord) -> None:
        """Delete a batch with its input and its answers. Raises StoreInUse where the batch has not ended. Blocks."""
        batch = record.batch
        if batch.status not in ENDED:
            raise StoreInUse(
                f"the batch `{batch.id}` is {batch.status}; cancel the batch and wait for its end", param="id"
            )
        others = {one.batch.input_file_id for one in self.batches(None) if one.batch.id != batch.id}
        self._forget(batch.id)
        for name in {batch.input_file_id, record.output, record.error} - others:
            self._unlink(name)

    def _forget(self, name: str) -> None:
        for kind in ("json", "lock", "cancel", "begun"):
            (self._batches / f"{name}.{kind}").unlink(missing_ok=True)

    def batch(self, name: str, owner: str | None) -> BatchRecord:
        """A batch of an owner; None: of any owner. Raises NotFound."""
        record = self._read(self._batches, _BATCH, name, BatchRecord)
        if record is None or owner not in (None, record.owner):
            raise NotFound(f"there is no batch `{name[:200]}` here", param="id", code="batch_not_found")
        return self._shown(record)

    def batches(self, owner: str | None) -> list[BatchRecord]:
        """Batches of an owner, the newest first; None: of all owners."""
        found = [one for one in self._all(self._batches, _BATCH, BatchRecord) if owner is None or one.owner == owner]
        return [self._shown(one) for one in sorted(found, key=lambda one: -one.order)]

    def unfinished(self) -> list[BatchRecord]:
        """Batches that have not ended, of all owners."""
        names = {entry.name[:-5] for entry in os.scandir(self._batches) if entry.name.endswith(".json")}
        self._ended &= names
        return [found for name in names - self._ended if (found := self.unended(name)) is not None]

    def open(self) -> int:
        """Number of batches that have not ended, of all owners."""
        return len(self.unfinished())

    def unended(self, name: str) -> BatchRecord | None:
        """The record of a batch on disk; None when the batch has ended or is gone."""
        record = self._read(self._batches, _BATCH, name, BatchRecord)
        if record is not None and record.batch.status in ENDED:
            self._ended.add(name)
            return None
        return record

    def cancel(self, name: str) -> None:
        """Ask for the end of a batch. `name`: a checked id."""
        self.create(self._batches / f"{name}.cancel").close()

    def cancelled(self, name: str) -> float | None:
        """Time at which a client asked for the end of a batch, in seconds since 1970; None: no client has."""
        with contextlib.suppress(FileNotFoundError):
            return (self._batches / f"{name}.cancel").stat().st_mtime
        return None

    def begun(self, name: str) -> Path:
        """Path of the marks of begun lines (`progress.Begun`). `name`: a checked id."""
        return self._batches / f"{name}.begun"

    def lock(self, name: str) -> FileIO | None:
        """Hold a batch until the file is closed; None when another process holds the batch."""
        file = self.create(self._batches / f"{name}.lock")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def _shown(self, record: BatchRecord) -> BatchRecord:
        batch = record.batch
        if batch.status not in ENDED and (since := self.cancelled(batch.id)) is not None:
            batch.status, batch.cancelling_at = "cancelling", int(since)
        return record

    @staticmethod
    def _write(path: Path, record: FileRecord | BatchRecord) -> None:
        """Write a whole record, or none. Raises OSError."""
        new = path.with_suffix(".new")
        try:
            Store._write_new(new, record)
            os.replace(new, path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    @staticmethod
    def _write_new(new: Path, record: FileRecord | BatchRecord) -> None:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(handle)

    @staticmethod
    def _read(folder: Path, form: re.Pattern[str], name: str, kind: type[T]) -> T | None:
        if not form.fullmatch(name):
            return None
        try:
            return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def _all(self, folder: Path, form: re.Pattern[str], kind: type[T]) -> Iterator[T]:
        for entry in os.scandir(folder):
            name, _, end = entry.name.rpartition(".")
            if end == "json" and (found := self._read(folder, form, name, kind)) is not None:
                yield found
