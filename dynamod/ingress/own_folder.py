"""Folders for what clients have sent: nobody else may read them."""

import os
import stat
from pathlib import Path

from dynamod.message.errors import UserError


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
