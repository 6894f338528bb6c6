"""The folder that all processes of a run of the tests share, and what it holds."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

VARIABLE = "DYNAMOD_TEST_RUN"


def make() -> Callable[[], None]:
    """Make the folder, which processes that are started from here on know by a variable; returns what removes it."""
    folder = os.environ[VARIABLE] = tempfile.mkdtemp(prefix="dm-run-", dir="/tmp")
    return lambda: shutil.rmtree(folder)


class Kinds:
    """The kinds of commands that have been started as a user would, by any process of the run: a file for each.

    `folder`: of the run, for a process that does not know it by the variable.
    """

    def __init__(self, folder: str = "") -> None:
        self.folder = Path(folder or os.environ[VARIABLE])

    def first(self, kind: tuple[str, ...]) -> bool:
        """Whether no process has asked for this kind before."""
        try:
            self._file(kind).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def forget(self, kind: tuple[str, ...]) -> None:
        """Make the next command of this kind the first."""
        self._file(kind).unlink(missing_ok=True)

    def _file(self, kind: tuple[str, ...]) -> Path:
        return self.folder / hashlib.sha256(repr(kind).encode()).hexdigest()
