"""Accept clients on a listening socket that several processes share, so that each has an equal share of them.

The kernel wakes all processes that wait at a socket, and the first one could take every client. A client stays where it
was accepted, with all its requests. So the processes count their open connections in memory that they share, and a
process with more than another leaves new clients to the others for a moment.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from dynamod.message.shares import Shares

log = logging.getLogger("dynamod.frontend")

PAUSE_S = 0.01
"""Seconds for which a process with more clients than another leaves a new one to it."""

SHORTER = 0.9
"""Factor of the next pause where the process with the fewest clients takes none, as one that hangs."""

LEAST_PAUSE_S = 0.001
"""Shorter pauses are left out."""

BACKLOG = 4096
"""Clients that wait to be accepted."""

TELL_S = 60.0
"""Seconds between two log lines about clients whose certificates are refused."""

TURN = 64
"""Clients that are accepted at a turn of the event loop."""

FULL_S = 1.0
"""Seconds without accepting when the system has no descriptors or memory left."""

_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Accepts at `sock`, which is bound, and gives each client a protocol that `make` makes.

    `spawn`: runs a coroutine as a task. The owner of the protocols tells `shares` when a client has left.
    """

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        shares: Shares | None,
        spawn: Callable[[Coroutine[Any, Any, None]], Any],
    ) -> None:
        self.sock, self._make, self._tls, self._shares, self._spawn = sock, make, tls, shares, spawn
        self._loop = asyncio.get_running_loop()
        self._pause, self._fewest = PAUSE_S, 0
        self._timer: asyncio.TimerHandle | None = None
        self._refused, self._told = 0, -TELL_S
        self.beginning = 0
        """Clients that were accepted and have no protocol yet."""

    def start(self) -> None:
        """Begin to accept."""
        self.sock.listen(BACKLOG)
        self.sock.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take the clients that wait, accept no more, and close the socket here; other processes keep it."""
        for _ in range(TURN):
            if not self._accept():
                break
        self._loop.remove_reader(self.sock)
        if self._timer is not None:
            self._timer.cancel()
        self.sock.close()

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self.sock, self._ready)

    def _rest(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self.sock)
        self._timer = self._loop.call_later(seconds, then)

    def _ready(self) -> None:
        for _ in range(TURN):
            if self._shares is not None and self._others_first(self._shares):
                self._rest(self._pause, self._waited)
                return
            if not self._accept():
                return

    def _others_first(self, shares: Shares) -> bool:
        """Whether a process with fewer clients takes the next one."""
        own, fewest = shares.own(), shares.fewest()
        if own <= fewest or fewest != self._fewest:
            self._pause, self._fewest = PAUSE_S, fewest
        return own > fewest and self._pause >= LEAST_PAUSE_S

    def _waited(self) -> None:
        """The others had their time: one that waits still is accepted here."""
        self._resume()
        if self._accept():
            self._pause *= SHORTER

    def _accept(self) -> bool:
        """Take one client; False: none waits."""
        try:
            client, _ = self.sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            if error.errno not in _FULL:
                raise
            log.error("no client can be accepted for %g s: %s", FULL_S, error.strerror)
            self._rest(FULL_S, self._resume)
            return False
        client.setblocking(False)
        if self._shares is not None:
            self._shares.opened()
        self.beginning += 1
        self._spawn(self._begin(client))
        return True

    async def _begin(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, client, ssl=self._tls)
            return
        except OSError as error:  # a timeout and an error of TLS, too
            log.debug("a client has left before its connection was ready, or speaks no TLS: %s", error)
            if isinstance(error, ssl.SSLError) and self._tls is not None and self._tls.verify_mode == ssl.CERT_REQUIRED:
                self._refuse(error)
        except Exception:  # else one client would end the owner of the task
            log.exception("a connection could not begin")
        finally:
            self.beginning -= 1
        client.close()
        if self._shares is not None:
            self._shares.closed()

    def _refuse(self, error: ssl.SSLError) -> None:
        """Say now and then that clients do not get in."""
        self._refused += 1
        if self._loop.time() - self._told >= TELL_S:
            why = getattr(error, "verify_message", "") or error.reason or error
            need = "they need a certificate of an authority in tls_client_ca_cert_path, which has not expired"
            log.warning("clients refused=%d, the last one: %s; %s", self._refused, why, need)
            self._refused, self._told = 0, self._loop.time()
