"""A way between two processes that can be cut without either being told: bytes wait, connections stay open."""

import contextlib
import socket
import threading
from collections.abc import Iterable


def ended(*ends: socket.socket) -> None:
    """Nothing passes these any more: whoever reads or writes there, in a thread too, goes on."""
    for sock in ends:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def closed(sockets: Iterable[socket.socket], threads: Iterable[threading.Thread]) -> None:
    """Close all, and wait for the threads at them."""
    for sock in sockets:
        ended(sock)
        sock.close()
    for thread in threads:
        thread.join(5)


class Way:
    """Forwards connections from a port of its own to another one of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._flows = threading.Event()
        self._flows.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def cut(self) -> None:
        """From now on nothing arrives, in either direction."""
        self._flows.clear()

    def heal(self) -> None:
        """What waited goes on."""
        self._flows.set()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        self._flows.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts, and with it new sockets
        self._listener.close()
        self._threads[0].join(10)
        closed(self._sockets, self._threads)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(ours)
            self._flows.wait()
            try:
                theirs = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                ours.close()
                continue
            self._sockets.append(theirs)
            theirs.settimeout(None)
            self._start(self._pump, ours, theirs)
            self._start(self._pump, theirs, ours)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
        self._flows.wait()  # that one side has closed does not arrive either
        ended(source, sink)
