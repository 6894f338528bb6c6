"""The files of a daemon: control socket, node lock, run folder."""

from pathlib import Path

from dynamod.message.errors import UserError
from dynamod.runtime.paths import RunFolder

from .lock import NodeLock


class NodeHeld(UserError):
    """Another daemon holds the node."""


class Place:
    """`socket`: path of the control socket. `folder`: exists from `take` on."""

    folder: RunFolder

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.lock = NodeLock(socket)

    def take(self) -> None:
        """Lock the node and make the run folder. Raises NodeHeld, UserError."""
        if not self.lock.take():
            raise NodeHeld(
                f"the node is held by process {self.lock.holder()} ({self.socket})",
                "stop it, or choose another socket with --socket",
            )
        try:
            self.folder = RunFolder(self.socket)
        except OSError as error:
            raise run_folder_error(error) from None

    def restore(self) -> None:
        """Make the files again that another program has removed. Raises OSError, UserError."""
        self.folder.restore()
        self.lock.restore()

    def leave(self) -> None:
        """Remove the run folder and release the node. The lock is last: a daemon that takes it finds no old file."""
        if hasattr(self, "folder"):
            self.folder.remove()
        self.lock.leave()


def run_folder_error(error: OSError) -> UserError:
    """The error for a run folder that cannot be used."""
    return UserError(f"the run folder cannot be used: {error}", "choose another --socket")
