"""How a command or a user's file reaches the daemon of its node, and starts one when there is none."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dynamod.message.errors import UserError
from dynamod.transport.channel import Channel

from .owned import check_socket
from .paths import link_path
from .release import check_release

UP = 20.0
"""Seconds for a daemon that was started to answer."""
LOOK = 0.05
NOT_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""Variables by which a service manager speaks to the command; the daemon that it starts is not meant."""


def connect(path: Path) -> socket.socket | None:
    """A connection to the daemon of the control socket `path`; None when none runs. Raises UserError."""
    check_socket(link_path(path))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(link_path(path)))
    except OSError as error:
        sock.close()
        if error.errno in (errno.EACCES, errno.EPERM):
            text = f"the daemon at {path} belongs to another user"
            raise UserError(text, "choose another socket with --socket, or DYNAMOD_SOCKET") from None
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTSOCK):
            return None
        raise UserError(f"cannot reach the daemon at {path}: {error.strerror}", "see dynamo doctor") from None
    try:
        check_release(path)
    except UserError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _spawn(path: Path) -> subprocess.Popen[bytes]:
    """A daemon of its own process, started for a file that may have threads; it ends with its last client."""
    popen = subprocess.Popen(
        [sys.executable, "-m", "dynamod", "--ephemeral", "--socket", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name not in NOT_OURS},
        cwd="/",
        start_new_session=True,
    )
    threading.Thread(target=popen.wait, name="dynamod daemon", daemon=True).start()  # no zombie stays
    return popen


def _refused(popen: subprocess.Popen[bytes]) -> bool:
    """Whether the daemon has ended because another one holds the node. Raises UserError when it ended otherwise."""
    code = popen.poll()
    if code is None:
        return False
    assert popen.stderr is not None
    with popen.stderr:
        lines = popen.stderr.read().decode(errors="replace").strip().splitlines()
    said = lines[-1].removeprefix("error: ") if lines else f"exit code {code}"
    if "the node is held by" not in said:
        raise UserError(f"the daemon did not start: {said}")
    return True


async def reach(path: Path, make: Callable[[], Channel], *, start: bool) -> None:
    """Connect `make()` to the daemon of `path`; `start`: start one when there is none. Raises OSError, UserError."""
    spawned, end = None, time.monotonic() + UP
    try:
        while (sock := connect(path)) is None:
            if not start:
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"no daemon answers at {path}")
            spawned = spawned or _spawn(path)
            if _refused(spawned):
                spawned = None  # that one will answer, or is about to end
            if time.monotonic() > end:
                raise UserError(f"the daemon at {path} does not answer within {UP:g} s", "see dynamo doctor")
            await asyncio.sleep(LOOK)
    finally:
        if spawned is not None and spawned.stderr is not None:
            spawned.stderr.close()  # what it says from now on is its own business
    await asyncio.get_running_loop().create_unix_connection(make, sock=sock)
