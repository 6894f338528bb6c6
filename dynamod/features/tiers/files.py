"""KV blocks as files of one worker, in a folder for one layout. Blocks the caller, and knows no bound.

`FOLDER/LAYOUT.N/HH/NAME.kv`: the layout's digest, the number of the worker that has the folder, the block's sequence
hash. A file says all that again, and ends with a checksum of everything before it. So a file that is damaged,
was cut, came from another program or was moved from another place is not taken for a block.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

from xxhash import xxh3_128, xxh3_128_digest

from dynamod.kvcache.tier_settings import entries
from dynamod.message.errors import UserError

_HEAD = Struct("<8s16sQQ")
"""Magic and format, digest of the layout, name, bytes of the block."""
_MAGIC = b"dynakv\x00\x01"
OVERHEAD = _HEAD.size + 16
"""Bytes of a file around those of its block."""
LARGEST = 1 << 28
"""Bytes of a file; no block has so many."""
WORKERS = 64
"""Workers of one layout that may share a folder, each with files of its own."""
LOCK = "lock"
"""In the folder of a worker."""
_BLOCK, _PART = ".kv", ".part"
_SECTOR = 4096


class BadFile(Exception):
    """A file is not what was written there."""


def occupied(size: int) -> int:
    """Bytes that the file of a block takes: whole sectors."""
    return -(-(size + OVERHEAD) // _SECTOR) * _SECTOR


class BlockFiles:
    """The files of one worker. `path`: its own folder, locked as long as the object is open."""

    def __init__(self, folder: Path, layout: str) -> None:
        """Make and lock the folder. Raises UserError."""
        self._digest = xxh3_128_digest(layout.encode())
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path, self._lock = _locked(folder, self._digest.hex())
        except OSError as error:
            raise UserError(f"kv_disk_path {folder}: {error.strerror}", "give a folder that is yours") from None

    def scan(self) -> list[tuple[int, int]]:
        """The blocks that are there, with the bytes they occupy, those used longest ago first.

        What a writer that has crashed left is removed.
        """
        found: list[tuple[int, int, int]] = []
        for entry in block_files(self.path):
            if entry.name.endswith(_PART):
                _remove(entry.path)
            elif (name := _name(entry.name)) is not None:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, name, occupied(status.st_size - OVERHEAD)))
        return [(name, size) for _, name, size in sorted(found)]

    def write(self, name: int, data: bytes) -> None:
        """Write a block: a concurrent reader sees all of it or nothing. Raises OSError."""
        path = self._path(name)
        part = path.with_suffix(_PART)
        head = _HEAD.pack(_MAGIC, self._digest, name, len(data))
        checksum = xxh3_128(head)
        checksum.update(data)
        parts = (head, data, checksum.digest())
        try:
            try:
                _write(part, parts)
            except FileNotFoundError:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                _write(part, parts)
            part.rename(path)
        except OSError:
            _remove(part)
            raise

    def read(self, name: int) -> bytes:
        """A block's bytes; it counts as used now. Raises OSError, and BadFile for a file that is not as it was written.

        Such a file is removed.
        """
        path = self._path(name)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if not ours or status.st_size > LARGEST:
                raise BadFile(f"{path} is no file of ours")
            whole = file.read()
        if not self._sound(whole, name):
            _remove(path)
            raise BadFile(f"{path} is damaged, or of another layout")
        os.utime(path)
        return whole[_HEAD.size : -16]

    def remove(self, name: int) -> None:
        """Remove a block. One that is not there passes, and one that cannot be removed."""
        _remove(self._path(name))

    def close(self) -> None:
        """Leave the folder to others."""
        os.close(self._lock)

    def _sound(self, whole: bytes, name: int) -> bool:
        if len(whole) < OVERHEAD:
            return False
        head = (_MAGIC, self._digest, name, len(whole) - OVERHEAD)
        return _HEAD.unpack_from(whole) == head and xxh3_128_digest(memoryview(whole)[:-16]) == whole[-16:]

    def _path(self, name: int) -> Path:
        text = f"{name:016x}"
        return self.path / text[:2] / f"{text}{_BLOCK}"


def lock(path: Path) -> int | None:
    """Lock the folder of a worker: a handle to close, None when another process has locked or just removed the folder.

    Raises OSError, for a folder that others may write to as well.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(0, f"others may write to {path.name}")
    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), (path / LOCK).lstat()):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def block_files(path: Path | str) -> "Iterator[os.DirEntry[str]]":
    """The files of blocks in the folder of a worker, and what a crashed writer has left of them."""
    return (entry for entry in entries(path) if entry.name.endswith(_PART) or _name(entry.name) is not None)


def _locked(folder: Path, layout: str) -> tuple[Path, int]:
    for number in range(WORKERS):
        path = folder / f"{layout}.{number}"
        path.mkdir(mode=0o700, exist_ok=True)
        try:
            handle = lock(path)
        except FileNotFoundError:  # it was removed in this moment
            continue
        if handle is not None:
            return path, handle
    raise OSError(0, f"{WORKERS} workers use it already")


def _name(file: str) -> int | None:
    stem, dot, kind = file.rpartition(".")
    if len(stem) != 16 or dot + kind != _BLOCK:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def _write(path: Path, parts: Sequence[bytes]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:
        file.writelines(parts)


def _remove(path: Path | str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
