"""Which release the daemon of a node is, as its lock file says, and whether this program can talk to it.

The lock file has the process id, then the protocol number and the version. Releases before 0.2.0 write the id alone.
"""

from pathlib import Path
from typing import NamedTuple

from dynamod import __version__
from dynamod.message.errors import UserError
from dynamod.message.protocol import PROTOCOL

from .paths import lock_path


class Release(NamedTuple):
    """A daemon: its process id, protocol number and version."""

    pid: int
    protocol: int = 1
    version: str = "older than 0.2.0"


def lock_text(pid: int) -> str:
    """What this release writes into the lock file."""
    return f"{pid}\n{PROTOCOL} {__version__}\n"


def holder(socket: Path) -> Release | None:
    """The daemon that holds the node of a control socket; None when none does or the lock file is no such file."""
    try:
        first, _, rest = lock_path(socket).read_text(encoding="utf-8").partition("\n")
        pid = int(first)
        protocol, _, version = rest.strip().partition(" ")
        return Release(pid, int(protocol), version) if protocol else Release(pid)
    except (OSError, ValueError):
        return None


def check_release(socket: Path) -> None:
    """Raises UserError when the daemon of a control socket speaks another protocol than this program."""
    found = holder(socket)
    if found is None or found.protocol == PROTOCOL:
        return
    raise UserError(
        f"the daemon at {socket} (process {found.pid}, dynamod {found.version}) speaks protocol {found.protocol}, "
        f"and dynamod {__version__} speaks protocol {PROTOCOL}",
        "end it and its graphs with dynamo stop, then start them again (a service: systemctl restart dynamod)",
    )
