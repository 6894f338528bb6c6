"""Ports for engines that must be told which to listen at, and do so much later."""

import socket
from contextlib import ExitStack

from dynamod.message.errors import UserError

TRIES = 100


class ReservedPorts:
    """`count` ports in a row, from `first` on, at `host`. The kernel gives them to no other socket before `close`.

    They are bound and do not listen: an engine that reuses addresses, as ZMQ and HTTP servers do, may bind them too.
    Raises UserError when this machine has no such address.
    """

    def __init__(self, host: str, count: int = 1) -> None:
        for _ in range(TRIES):
            with ExitStack() as stack:
                try:
                    self.first = _bound(stack, host, 0)
                    for number in range(1, count):
                        _bound(stack, host, self.first + number)
                except OSError as error:
                    why = error
                    continue
                self._stack = stack.pop_all()
                return
        hint = "name an address of this machine as transfer_host"
        raise UserError(f"no {count} free ports at {host}: {why.strerror}", hint)

    def close(self) -> None:
        """The engine listens."""
        self._stack.close()


def _bound(stack: ExitStack, host: str, port: int) -> int:
    sock = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    found: int = sock.getsockname()[1]
    return found
