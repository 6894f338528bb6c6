"""The control socket: bound as soon as the node is held, answered from the first client on.

The HTTP library takes a third of a second to import, the longest single step of a cold start, and most daemons that run
in a terminal are never asked anything. So it is imported for the first client, which waits in the listener's backlog.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import socket
from types import ModuleType
from typing import TYPE_CHECKING

from dynamod.actor import Actor, Reason, handle
from dynamod.message.control import Ping
from dynamod.message.errors import UserError
from dynamod.transport.importing import IMPORTING
from dynamod.transport.unix import LOOK, remove_stale

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

    from .server import Control

log = logging.getLogger("dynamod.daemon")


def _server() -> ModuleType:
    with IMPORTING:
        return importlib.import_module(f"{__package__}.server")


class ControlSocket(Actor):
    """Binds the control socket, mode 0660, and hands it to `server.Control` at the first connection."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._listener: socket.socket | None = None
        self._control: Control | None = None

    async def started(self) -> None:
        """Bind the socket, and bind it again when another program has removed it."""
        self._bind()
        self.context.task(self._keep(), "keep")

    def _bind(self) -> None:
        """We hold the node's lock, so a socket in the way is a dead daemon's."""
        path = str(self._node.place.socket)
        remove_stale(path)
        self._listener = listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        old = os.umask(0o177)  # closed to others until it has its mode
        try:
            listener.bind(path)
            os.chmod(path, 0o660)  # whatever umask, or a default ACL of the folder, made of it
        except OSError as error:
            listener.close()
            raise UserError(f"cannot bind the control socket {path}: {error.strerror}", "choose --socket") from None
        finally:
            os.umask(old)
        listener.listen(128)
        listener.setblocking(False)
        self.context.task(self._open(listener), "open")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            if not os.path.lexists(self._node.place.socket) and self._node.place.lock.held:
                with contextlib.suppress(UserError):
                    self._bind()
                    log.warning("the removed control socket %s is there again", self._node.place.socket)

    async def _open(self, listener: socket.socket) -> None:
        connected = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, connected.set)
        try:
            await connected.wait()
        finally:
            loop.remove_reader(listener)
        if self._control is None:
            module = await asyncio.to_thread(_server)
            control: Control = module.Control(self._node)
            self._control = control
        await self._control.start(listener)

    @handle
    async def ping(self, message: Ping) -> str:
        """Answer the watchdog."""
        return "pong"

    async def stopping(self, reason: Reason) -> None:
        """Close and remove the socket."""
        if self._control is not None:
            await self._control.stop()
        if self._listener is not None:
            self._listener.close()
        if self._node.place.lock.held:  # else it is another daemon's
            remove_stale(str(self._node.place.socket))
