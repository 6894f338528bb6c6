"""Where the control socket is, and the private folder of a running daemon next to it."""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dynamod.message.errors import UserError

from .owned import own_folder

SOCKET_VARIABLE = "DYNAMOD_SOCKET"
_LONGEST = 100  # sockaddr_un holds 108 bytes on Linux, 104 on macOS


def socket_candidates(explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where a control socket may be, in the order in which clients try them."""
    chosen = explicit or environ.get(SOCKET_VARIABLE)
    if chosen:
        return [Path(chosen)]
    folders = [environ.get("RUNTIME_DIRECTORY", "").split(":")[0], environ.get("XDG_RUNTIME_DIR", ""), "/run/dynamod"]
    found = [Path(folder) / "dynamod.sock" for folder in folders if folder]
    return [*found, private_socket()]


def private_socket() -> Path:
    """The fallback of a user without write access to the usual places."""
    return Path(tempfile.gettempdir()) / f"dynamod-{os.getuid()}" / "dynamod.sock"


def choose_socket(explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The first place where this process may create a socket. Raises UserError when there is none."""
    tried: list[str] = []
    for path in socket_candidates(explicit, environ):
        if len(os.fsencode(path)) > _LONGEST:
            raise UserError(f"the socket path {path} is too long", f"use --socket with at most {_LONGEST} bytes")
        try:
            if not _free(path):
                raise OSError(0, "there is something that is no socket")
            private = path == private_socket()
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o755)
            if private and path.parent.stat().st_uid != os.getuid():
                raise PermissionError(f"{path.parent} belongs to another user")
            if os.access(path.parent, os.W_OK | os.X_OK):
                return path
            tried.append(f"{path}: the folder is not writable")
        except OSError as error:
            tried.append(f"{path}: {error.strerror or error}")
    raise UserError(f"no place for the control socket ({'; '.join(tried)})", "name one with --socket")


def _free(path: Path) -> bool:
    """Whether nothing is there, or a socket. One look: a daemon that ends may remove its socket at any moment."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True


def link_path(socket: Path) -> Path:
    """The node link's socket next to the control socket."""
    return socket.with_name(socket.name + ".link")


def lock_path(socket: Path) -> Path:
    """The lock that names the daemon of the node."""
    return socket.with_name(socket.name + ".lock")


def logs_folder(private: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Where log files go: the service manager's folder, in which they outlive the daemon, else the private one."""
    given = environ.get("LOGS_DIRECTORY", "").split(":")[0]
    return Path(given) if given else private / "logs"


def worker_socket_path(folder: Path, name: str) -> Path:
    """The socket of a component process; its name when there is room for it, else what stands for it."""
    path = folder / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST:
        path = folder / f"{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}.sock"
    return path


class RunFolder:
    """A private folder for worker sockets and logs, named by the process that owns it and removed with it."""

    def __init__(self, socket: Path) -> None:
        parent = socket.with_name(socket.name + ".d")
        if len(os.fsencode(parent)) > _LONGEST - 30:  # room for /PID/Component-12.sock
            parent = Path(tempfile.gettempdir()) / f"dynamod-{os.getuid()}"
        self.path = parent / str(os.getpid())
        self._make()

    def restore(self) -> None:
        """Make the folder again when a cleaner of /tmp has removed it. Raises OSError."""
        if not self.path.exists():
            self._make()

    def _make(self) -> None:
        parent = self.path.parent
        for attempt in range(10):  # the last of the processes that end removes the parent, perhaps just now
            try:
                parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                own_folder(parent)
                _sweep(parent)
                own_folder(self.path)
                return
            except FileNotFoundError:
                if attempt == 9:
                    raise

    def remove(self) -> None:
        """Remove the folder, and its parent when it was the last."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process's folder may be in it
            self.path.parent.rmdir()


def _sweep(parent: Path) -> None:
    """Remove folders whose process was killed."""
    for folder in parent.iterdir():
        if folder.name.isdigit() and not _lives(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
