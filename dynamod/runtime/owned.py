"""Folders, files and sockets that must be ours: another user of the machine may have replaced them."""

import os
import stat
from pathlib import Path

from dynamod.message.errors import UserError


def own_folder(path: Path) -> None:
    """Make a folder that only its owner can write into, or check an existing folder.

    Raises PermissionError when it is a link, belongs to another user, or others may write into it.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise PermissionError(f"{path} is no folder")
    if facts.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to user {facts.st_uid}")
    if facts.st_mode & 0o022:
        raise PermissionError(f"others may write into {path}")


def open_own(path: Path, flags: int, mode: int) -> int:
    """Open a file of ours without following a link; returns the descriptor.

    Raises PermissionError when it is no plain file, belongs to another user or has a second name.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_nlink > 1:
        os.close(fd)
        raise PermissionError(f"{path} is not a file of user {os.getuid()} alone")
    return fd


def check_socket(path: Path) -> None:
    """Raise UserError for a daemon's socket that another user may have put there.

    The service's user may differ from ours: its socket lies in a folder that only root can have made.
    """
    try:
        owner = path.lstat().st_uid
        above = [folder.stat() for folder in path.absolute().parent.parents]
    except OSError:
        return  # there is nothing to talk to
    if owner in (0, os.getuid()):
        return
    if any(folder.st_mode & 0o022 or folder.st_uid not in (0, os.getuid()) for folder in above):
        text = f"the socket {path} belongs to user {owner} and may imitate the socket of a daemon"
        raise UserError(text, "name your daemon's with --socket")
