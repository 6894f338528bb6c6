"""The daemon of the node for a command: the one that runs, or one that is forked here.

The fork comes before the command starts any thread or event loop. The daemon's first session is a socket pair between
the two, so that it ends on its own when the command does, and says on it why it cannot start.
"""

import contextlib
import importlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dynamod.daemon.lock import NodeLock
from dynamod.message.errors import UserError
from dynamod.runtime import garbage
from dynamod.runtime.attach import connect
from dynamod.runtime.paths import choose_socket

SHARED = (
    "dynamod.discovery.link",
    "dynamod.engine.base",
    "dynamod.extension.installed",
    "dynamod.graph.graph",
    "dynamod.observe.backlog",
    "importlib.metadata",
    "importlib.resources",
)
"""Modules that the command, the daemon and its processes need: a process that is forked has them for nothing."""

PATIENCE = 10.0
"""Seconds that a daemon which cannot start waits for its command to read why."""


@dataclass(slots=True)
class Attachment:
    """A connection on which nothing has been said. `pid`: of the daemon, when it was forked here."""

    path: Path
    sock: socket.socket
    pid: int = 0


_early: Attachment | None = None


def attach_early(argv: Sequence[str], kinds: Sequence[str]) -> None:
    """Called by a command that will serve for certain, as soon as that is known: the rest runs alongside the daemon.

    A mistake is an error when the attachment is taken.
    """
    global _early
    garbage.pause()  # here, and in the processes that are forked from here on
    if kinds:
        for module in SHARED:
            importlib.import_module(module)
    try:
        _early = attach(_option(argv, "--socket"), kinds)
    except UserError:
        _early = None


def leave_early() -> None:
    """Called when the command ends: a daemon that was forked for it and is still unknown to others ends too."""
    global _early
    early, _early = _early, None
    if early is not None:
        _leave(early)


def _leave(attachment: Attachment) -> None:
    attachment.sock.close()
    pid = attachment.pid
    if pid:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGSTOP)  # else it might make its files between the look and the kill
            os.waitpid(pid, os.WUNTRACED)
            if NodeLock(attachment.path).holder() == pid:
                os.kill(pid, signal.SIGCONT)
            else:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def take(explicit: str | None) -> Attachment:
    """The attachment that was made early, or one that is made now. Raises UserError."""
    global _early
    early, _early = _early, None
    return early if early is not None else attach(explicit)


def attach(explicit: str | None, kinds: Sequence[str] = ()) -> Attachment:
    """Connect to the daemon of the node, or fork it. `kinds`: processes that will be needed. Raises UserError."""
    path = choose_socket(explicit).absolute()
    sock = connect(path)
    return Attachment(path, sock) if sock is not None else _fork(path, kinds)


def _option(argv: Sequence[str], name: str) -> str | None:
    """The value of a flag, before the flags are parsed."""
    for place, word in enumerate(argv):
        if word == "--":
            break
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and place + 1 < len(argv):
            return argv[place + 1]
    return None


def _fork(path: Path, kinds: Sequence[str]) -> Attachment:
    ours, theirs = socket.socketpair()
    # Python drops exceptions of what runs in `os.fork`, such as logging's handlers: a Ctrl-C there would be lost
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ours.close()
        theirs.close()
        raise UserError(f"cannot start a daemon: fork: {error.strerror}", "see ulimit -u") from None
    if pid:
        theirs.close()
        ours.setblocking(False)
        attachment = Attachment(path, ours, pid)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except KeyboardInterrupt:
            _leave(attachment)
            raise
        return attachment
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ours.close()
        code = _daemon(path, theirs, kinds)
    finally:
        os._exit(code)


def _daemon(path: Path, first: socket.socket, kinds: Sequence[str]) -> int:
    """The life of the forked daemon: apart from the terminal, its logs in files and in the sessions of commands."""
    import msgspec

    from dynamod.daemon.spawn import Origin, prewarm
    from dynamod.message.node import Refused
    from dynamod.runtime.attach import NOT_OURS
    from dynamod.transport.framing import MAGIC, pack

    os.setsid()
    folder = os.getcwd()
    for name in NOT_OURS:
        os.environ.pop(name, None)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    try:
        if kinds:
            from dynamod.runtime.host import live, warm_up

            if "worker" in kinds:  # few modules, most of which an ingress process needs, too
                warm_up("worker")
            prewarm(kinds, Origin(dict(os.environ), folder), partial(live, forked=True))
        os.chdir("/")
        from dynamod.daemon.place import NodeHeld
        from dynamod.observe.logs import configure

        from .boot import Options, run

        configure(console=False)
        try:
            return run(Options(path, ephemeral=True, first=first))
        except NodeHeld as error:
            refused = Refused(str(error), error.hint, held=True)
        except UserError as error:
            refused = Refused(str(error), error.hint)
    except BaseException as error:
        refused = Refused(f"the daemon failed: {type(error).__name__}: {error}")
    first.settimeout(PATIENCE)
    with contextlib.suppress(OSError):
        first.sendall(MAGIC + pack(msgspec.msgpack.encode(refused)))
        while first.recv(1 << 16):  # the command writes before it reads: the connection stays until it has left
            pass
    return 1
