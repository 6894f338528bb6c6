"""The console of a daemon without a frontend: served by the command, at localhost, for one token."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from typing import Any

from dynamod.actor import Actor, Reason, System
from dynamod.http.icon import ICON
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.message.errors import UserError

from . import pages
from .api import ConsoleApi
from .asking import Daemon
from .watch import Watch

ADDRESS = "127.0.0.1"
STARTED = 10.0
"""Seconds until the console is served."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Alone(Actor):
    """Serves the console of the daemon at a control socket. `listener`: bound. `token`: the key that clients need."""

    def __init__(self, path: str, listener: socket.socket, token: str) -> None:
        self._path, self._listener, self._token = path, listener, token
        self._server: Server | None = None

    async def started(self) -> None:
        """Begin to serve."""
        self._server = server = Server(FrontendSettings(host=ADDRESS, api_keys=self._token), [], _no_models)
        daemon = Daemon(self._path)
        watch = Watch(daemon)
        self._api = api = ConsoleApi(server, daemon, watch, admin=True, serves_models=False)
        server.add(*api.routes(), Route("GET", "/", pages.page), ICON)
        await server.start(self._listener, spawn=self.context.task)
        self.context.task(watch.run(), "watch")

    async def stopping(self, reason: Reason) -> None:
        """End open answers."""
        if self._server is not None:
            self._api.end()
            await self._server.stop(grace=1.0)


def _no_models() -> Mapping[str, Any]:
    return {}


def run(path: str, port: int, *, browser: bool) -> int:
    """Serve until a signal. Prints the address. Returns the exit code, raises UserError."""
    logging.getLogger("dynamod").setLevel(logging.WARNING)
    listener = _bound(port)
    token = secrets.token_urlsafe(32)
    # what stands after # is sent to no server, and the page takes it out of the address
    url = f"http://{ADDRESS}:{listener.getsockname()[1]}/#token={token}"
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(path, listener, token, url, browser))
    return 0


def _bound(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError as error:
        listener.close()
        why = f"--port {port}: {error.strerror or error}"
        raise UserError(why, "choose another port, or 0 for a free one") from None
    listener.setblocking(False)
    return listener


async def _serve(path: str, listener: socket.socket, token: str, url: str, browser: bool) -> None:
    over = asyncio.Event()
    for number in ENDS:
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with System() as system:
        served = system.start("console", lambda: Alone(path, listener, token), restart="temporary")
        await system.ready(served, timeout=STARTED)
        print(f"console: {url}", flush=True)
        print("this address lets its holder see logs and change processes; Ctrl-C ends it", flush=True)
        with _opened(url) if browser else contextlib.nullcontext():
            await over.wait()


@contextlib.contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open the address in the user's browser, where the machine has a display.

    The browser gets the name of a private file that leads there: every user of the machine can read command lines.
    """
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin"):
        yield
        return
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="dynamod-console-") as file:  # mode 0600
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">')
        file.flush()
        threading.Thread(target=webbrowser.open, args=(f"file://{file.name}",), daemon=True, name="browser").start()
        yield
