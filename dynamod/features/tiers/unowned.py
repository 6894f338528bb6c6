"""Folders of blocks that no worker has: of another model, another layout, of workers that are not started any more."""

import contextlib
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from .files import LOCK, block_files, lock

log = logging.getLogger("dynamod.kvcache")

UNUSED = 7 * 86400.0
"""Seconds without use after which blocks are removed with their folder."""
RESTART = 3600.0
"""Seconds in which the worker of a folder may come back: it is kept so long, whatever room there is."""

_NAME = re.compile(r"[0-9a-f]{32}\.\d+")


class Folder(NamedTuple):
    """Of one worker, perhaps. `used`: when a block was last used, in seconds since 1970. `size`: bytes on the disk."""

    used: float
    size: int
    path: Path


def remove_unowned(folder: Path, needed: int) -> int:
    """Remove blocks that were not used for `UNUSED`, and more, the longest unused first, until `needed` bytes are free.

    The blocks of a living worker, and files that are no blocks, stay. Returns how many were removed.
    """
    now, removed, freed = time.time(), 0, 0
    for one in sorted(_folders(folder)):
        kept = UNUSED if shutil.disk_usage(folder).free >= needed else RESTART
        if now - one.used > kept and _removed(one.path):
            removed, freed = removed + 1, freed + one.size
    if removed:
        log.info("%d folders of KV blocks that no worker has used any more are removed, %d MB", removed, freed // 10**6)
    return removed


def _folders(folder: Path) -> list[Folder]:
    """Nothing is locked: a worker that begins now shall find its own."""
    paths = [entry for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    return [_seen(Path(entry.path)) for entry in paths if entry.is_dir(follow_symlinks=False)]


def _seen(path: Path) -> Folder:
    used, size = path.lstat().st_mtime, 0
    for entry in block_files(path):
        with contextlib.suppress(FileNotFoundError):  # its worker lives
            status = entry.stat(follow_symlinks=False)
            used, size = max(used, status.st_mtime), size + status.st_blocks * 512
    return Folder(used, size, path)


def _removed(path: Path) -> bool:
    """Its lock is held meanwhile, so no worker takes the folder. Files that are not ours stay, and their folders."""
    try:
        handle = lock(path)
        if handle is None:
            return False
        with open(handle):
            for entry in block_files(path):
                os.unlink(entry.path)
            for inner in [one for one in os.scandir(path) if one.is_dir(follow_symlinks=False)]:
                os.rmdir(inner.path)
            os.unlink(path / LOCK)
            os.rmdir(path)
    except OSError as error:
        log.warning("KV blocks: %s is not removed: %s", path, error.strerror)
        return False
    return True
