"""Folders for what clients have sent: no other user may read them, and a release that is too old refuses them."""

import contextlib
import errno
import os
import stat
from pathlib import Path

from dynamod.message.errors import UserError

FORMAT_FILE = "format"
"""Holds the number of the format that a folder's files have; releases before 0.2.0 write none."""


def own_folder(folder: str, setting: str, *below: str) -> Path:
    """The folder, with those `below` it, all made if need be. `setting`: what names it.

    Raises UserError when one is not a folder of ours alone.
    """
    root = Path(folder).expanduser()
    try:
        for path in (root, *(root / name for name in below)):
            path.mkdir(mode=0o700, parents=path is root, exist_ok=True)
            facts = path.lstat() if path is not root else path.stat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
                raise UserError(f"{setting}: others may use {path}", "choose a folder of mode 0700 of your own")
    except OSError as error:
        raise UserError(f"{setting}: {error.filename}: {error.strerror}", "choose another folder") from None
    return root


def check_format(root: Path, setting: str, number: int) -> None:
    """Note in a folder without a note which format its files have: 1, the only one before there were notes.

    `number`: the newest that this release reads. A release with a higher number migrates older files, and writes the
    note afterwards. Raises UserError when a newer release has written the files.
    """
    file = root / FORMAT_FILE
    try:
        text = file.read_text(encoding="ascii", errors="replace").strip()
        found = int(text) if text.isdecimal() else None
    except FileNotFoundError:
        found = 1
    except OSError as error:
        raise UserError(f"{setting}: {file}: {error.strerror}", "choose another folder") from None
    refuse_newer(file, setting, found, number)
    if not file.exists():
        try:
            fresh = file.with_name(f"{FORMAT_FILE}.{os.getpid()}")  # another frontend may start at the same time
            fresh.touch(mode=0o600)
            fresh.write_text(f"{found}\n", encoding="ascii")
            fresh.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            if error.errno == errno.ENOSPC:
                return  # files without a note have this format anyway; a full disk keeps no frontend from its start
            raise UserError(f"{setting}: {file}: {error.strerror}", "choose another folder") from None


def refuse_newer(file: Path, setting: str, found: int | None, number: int) -> None:
    """Raise UserError for a file of a format above `number`, or of one that cannot be read (None)."""
    if found is None or found > number:
        what = "is of an unknown format" if found is None else f"has format {found}, and this release reads {number}"
        hint = "start the release that wrote it, or name another folder; nothing was changed there"
        raise UserError(f"{setting}: {file} {what}", hint)
