"""A connection between the daemon and a process: messages both ways, and questions with answers both ways."""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from dynamod.message import newer
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.node import Answer, Ask, FromNode, ToNode

from .base import Spawn
from .framing import FramedProtocol, FrameError

log = logging.getLogger("dynamod.transport")

_encoder = msgspec.msgpack.Encoder()
_to_node = msgspec.msgpack.Decoder(ToNode)
_from_node = msgspec.msgpack.Decoder(FromNode)
_to_node_sizes, _from_node_sizes = newer.sizes(ToNode), newer.sizes(FromNode)
_WHAT = "a message between process and daemon"

Handler = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Any]]
"""Answers a question: command and arguments to a value of MessagePack; raises UserError for the asker's mistakes."""


class Channel(FramedProtocol):
    """One end. `daemon`: it is the daemon's end, which takes `ToNode` and sends `FromNode`.

    `take` gets every message but questions and answers, `closed` is called once when the connection has gone.
    Questions are answered by `handler`, in tasks that `spawn` starts; without one they are refused.
    """

    def __init__(
        self,
        take: Callable[[Any], None],
        *,
        daemon: bool = False,
        opened: Callable[[], None] = lambda: None,
        closed: Callable[[], None] = lambda: None,
        handler: Handler | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        super().__init__(self._decoded, self._over)
        self._take, self._opened, self._closed = take, opened, closed
        self._handler, self._spawn = handler, spawn
        self._decoder: msgspec.msgpack.Decoder[Any] = _to_node if daemon else _from_node
        self._union = ToNode if daemon else FromNode
        self._sizes = _to_node_sizes if daemon else _from_node_sizes
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._acquainted = False  # a stranger's first message must be one of ours

    @property
    def open(self) -> bool:
        """Whether messages can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting(self) -> int:
        """Bytes that the other end has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def peer_pid(self) -> int:
        """Process id of the other end of a unix socket, as the kernel says; 0: not known."""
        return self._peer()[0]

    @property
    def peer_uid(self) -> int | None:
        """The user of the other end; None: not known."""
        pid, uid = self._peer()
        return uid if pid else None

    def _peer(self) -> tuple[int, int]:
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        option = getattr(socket, "SO_PEERCRED", None)
        if sock is None or option is None or sock.family != socket.AF_UNIX:
            return 0, 0
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
        return pid, uid

    def send(self, message: Any) -> None:
        """Send a message; dropped when the other end is gone."""
        if self.open:
            self.write(_encoder.encode(message))

    async def ask(self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float) -> Any:
        """Ask the other end. Raises TimeoutError, UserError for a mistake of ours, else DynamodError with its words."""
        if not self.open:
            raise DynamodError("the process has ended")
        self._asked += 1
        number = self._asked
        future = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(Ask(number, command, arguments or {}))
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._questions[number]

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to talk."""
        super().connection_made(transport)
        self._opened()

    def _over(self, why: str) -> None:
        """The other end does not answer any more."""
        for future in self._questions.values():
            if not future.done():
                future.set_exception(DynamodError("the process has ended"))
        self._closed()

    def _decoded(self, payload: bytes | memoryview) -> None:
        try:
            message = self._decoder.decode(payload)
            newer.count_fields(payload, self._sizes, _WHAT)
            self._message(message)
            self._acquainted = True
        except msgspec.ValidationError:
            if not self._acquainted or newer.known([newer.untyped(payload)], self._union, _WHAT):
                raise
        except KeyError as error:  # something under a lease that has ended
            raise FrameError(str(error)) from None

    def _message(self, message: Any) -> None:
        match message:
            case Ask(number, command):
                if self._handler is None or self._spawn is None:
                    self.send(Answer(number, error=f"{command} cannot be asked here"))
                else:
                    self._spawn(self._answer(self._handler, message), f"answer {command}")
            case Answer(number, value, error, mistake, hint):
                future = self._questions.get(number)
                if future is None or future.done():
                    return
                if error:
                    future.set_exception(UserError(error, hint) if mistake else DynamodError(error))
                else:
                    future.set_result(value)
            case _:
                self._take(message)

    async def _answer(self, handler: Handler, ask: Ask) -> None:
        try:
            answer = Answer(ask.number, await handler(ask.command, ask.arguments))
        except UserError as error:
            answer = Answer(ask.number, error=str(error), mistake=True, hint=error.hint)
        except DynamodError as error:
            answer = Answer(ask.number, error=str(error))
        except Exception as error:
            log.exception("%s failed", ask.command)
            answer = Answer(ask.number, error=f"{type(error).__name__}: {error}")
        self.send(answer)
