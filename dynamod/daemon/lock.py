"""The node lock: at most one daemon holds a node (its control socket and its registry)."""

import fcntl
import os
from pathlib import Path

from dynamod.message.errors import UserError
from dynamod.runtime import release
from dynamod.runtime.owned import open_own
from dynamod.runtime.paths import lock_path
from dynamod.runtime.release import lock_text


class NodeLock:
    """`take` succeeds for one process at a time and until it ends, however it ends."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._file: int | None = None

    def take(self) -> bool:
        """Try to hold the node. Raises UserError when the lock is not a file of ours."""
        if self._file is not None:
            return True
        try:
            file = open_own(lock_path(self.socket), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            text = f"the lock {lock_path(self.socket)} cannot be opened: {error.strerror or error}"
            raise UserError(text, "choose another --socket, in a folder of your own") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        os.ftruncate(file, 0)
        os.pwrite(file, lock_text(os.getpid()).encode(), 0)
        self._file = file
        return True

    def restore(self) -> None:
        """Make a removed lock file again."""
        if self._file is not None and not os.path.lexists(lock_path(self.socket)):
            old, self._file = self._file, None
            if self.take():
                os.close(old)
            else:
                self._file = old

    @property
    def held(self) -> bool:
        """Whether this process holds the node; no longer after the lock file was replaced."""
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file), os.stat(lock_path(self.socket)))
        except OSError:
            return False

    def holder(self) -> int:
        """Pid of the process that holds the node now, 0 when unknown."""
        found = release.holder(self.socket)
        return found.pid if found is not None else 0

    def leave(self) -> None:
        """Let another process hold the node. The lock file stays: its removal would race with the next process."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None
