"""One session of the library nats-py: making it, ending it, and its errors in plain words."""

import asyncio
import contextlib
import errno
import importlib
import math
import ssl
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from dynamod.message.errors import UserError
from dynamod.transport.importing import IMPORTING

from .settings import NatsSettings

if TYPE_CHECKING:
    from nats.aio.client import Client

_LIBRARY = "nats.aio.client"
RECONNECT_WAIT = 0.25
"""Seconds between two attempts to reach the same server."""

PENDING = 1024 * 1024
"""Bytes nats-py may hold back before a publish waits for the socket."""

REFUSED_WAIT = 5.0
"""The same after a server refused our credentials: only a person can change that."""


def new_client() -> "Client":
    """A client that is not connected yet."""
    client: Client = library().Client()
    return client


def library() -> ModuleType:
    """The module of the library that has the client. A process with threads imports the module in a thread first."""
    if _LIBRARY not in sys.modules:
        with IMPORTING, _without("aiohttp"):
            return importlib.import_module(_LIBRARY)
    return importlib.import_module(_LIBRARY)  # waits for a thread that is importing the module


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Imports in here do not find the module `name`, unless it is loaded.

    nats-py takes aiohttp if it is there, for websockets, which we do not use: 0.2 s and 10 MB in each process.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = cast("Any", None)
    try:
        yield
    finally:
        del sys.modules[name]


def options(settings: NatsSettings, client: "Client", name: str, servers: Sequence[str]) -> dict[str, Any]:
    """Arguments of `Client.connect`: tries `servers` in their order forever, and what a server does not take is not
    held for long.
    """
    found: dict[str, Any] = {
        "servers": list(servers),
        "dont_randomize": True,
        "name": name,
        "connect_timeout": settings.connect_timeout,
        "reconnect_time_wait": RECONNECT_WAIT,
        "max_reconnect_attempts": -1,
        "pending_size": PENDING,
        "flush_timeout": settings.silence,
        "ping_interval": 3600,  # our own signs of life say more, see `link`
    }
    if settings.tls:
        found["tls"] = settings.tls_context()
    guard = _guard(client, settings.tls)
    if settings.username:
        found["user"], found["password"] = settings.username, lambda: guard(settings.password)
    elif settings.token:
        found["token"] = lambda: guard(settings.token)
    elif settings.nkey:
        found["nkeys_seed_str"] = settings.nkey
    elif settings.credentials_file:
        found["user_credentials"] = str(settings.credentials_file)
    return found


def _guard(client: "Client", tls: bool) -> Any:
    """nats-py continues in clear text when a server offers no TLS; a secret must not."""

    def secret(value: str) -> str:
        if tls and not offers_tls(client):
            raise ConnectionRefusedError("the server offers no TLS")
        return value

    return secret


def offers_tls(client: "Client") -> bool:
    """Whether the server that `client` speaks to has asked for TLS, and so got it."""
    info: dict[str, Any] = getattr(client, "_server_info", {})
    return bool(info.get("tls_required"))


def refuses_credentials(error: BaseException) -> bool:
    """Whether a server has refused the credentials."""
    text = str(error).lower()
    return "authorization violation" in text or "authentication" in text or "authorization failed" in text


def distrusts(error: BaseException) -> bool:
    """Whether we do not take the server's certificate, or it does not take ours."""
    words = "certificate", "unknown ca"
    return isinstance(error, ssl.SSLError) and any(word in str(error).lower() for word in words)


def cut_off(error: BaseException) -> bool:
    """Whether the other end has just closed the connection."""
    lost = isinstance(error, ConnectionError) and str(error) == "Connection lost"  # asyncio's words, without a number
    return lost or (isinstance(error, ConnectionError) and error.errno in (errno.ECONNRESET, errno.EPIPE))


def plain(error: BaseException) -> str:
    """An error of the library as part of a sentence."""
    if isinstance(error, UserError):
        return error.line()
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError) and error.errno:
        return "connection refused"
    if cut_off(error):
        return "it closes the connection"
    return (str(error) or type(error).__name__).removeprefix("nats: ")


def cut(client: "Client") -> None:
    """Break the socket off. nats-py's own close waits until all bytes have left, which a dead connection never does."""
    pending = getattr(client, "_pending", None)
    if pending is not None:
        client._pending, client._pending_data_size = [], 0
    writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is not None:
        with contextlib.suppress(AttributeError):  # TLS that is closed already, before Python 3.11.4
            writer.transport.abort()


async def discard(client: "Client") -> None:
    """End a client within a second, whatever state it is in. Nothing of it stays."""
    subscriptions = list(getattr(client, "_subs", {}).values())
    cut(client)
    # a client that never got as far as a connection may fail in any way
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1.0):
            await client.close()
    cut(client)
    for subscription in subscriptions:  # close() leaves these tasks when it fails half way
        task = getattr(subscription, "_wait_for_msgs_task", None)
        if task is not None:
            task.cancel()


async def settle(client: "Client", timeout: float) -> None:
    """Wait until the server has all that was sent before, subscriptions too. Raises nats.errors.FlushTimeoutError.

    nats-py writes a ping past what it holds back itself, so only the second one comes after that.
    """
    seconds = max(1, math.ceil(timeout))  # its argument is annotated as int
    await client.flush(seconds)
    await client.flush(seconds)
