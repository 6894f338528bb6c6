"""Listening sockets: bound by the daemon, inherited by the processes that accept on them.

Bound plainly, so that a stranger on the port is an error and never a silent share; shared by inheritance, so that
several ingress processes serve one port and a restart refuses no connection.
"""

import errno
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dynamod.message.errors import UserError

from .port_owner import port_owner


def listen(host: str, port: int, who: str, owner: Callable[[int], str] = port_owner) -> socket.socket:
    """A listening TCP socket. `owner`: says who listens on a port, empty when that is not known.

    Raises UserError that says what to do when the port cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UserError(f"{who} cannot listen on '{host}': {error.strerror or error}", "check the host") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(4096)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            by = f" by {found}" if (found := owner(port)) else ""
            raise UserError(
                f"{who} cannot listen: port {port} is in use{by}",
                "choose another port or stop its owner",
            ) from None
        if error.errno == errno.EACCES:
            raise UserError(f"{who} may not listen on port {port}", "choose a port above 1023") from None
        raise UserError(f"{who} cannot listen on {host} port {port}: {error.strerror}", "check host and port") from None
    return sock


TlsFiles = tuple[str, str] | None
"""Certificate and key; None: plain HTTP."""


def tls_files(configs: Iterable[Mapping[str, Any]]) -> TlsFiles:
    """Certificate and key with which components of these configurations serve HTTPS; None: HTTP."""
    for config in configs:
        found = {key.replace("-", "_"): value for key, value in config.items()}
        if found.get("tls_cert_path"):
            return found["tls_cert_path"], found.get("tls_key_path", "")
    return None


def url_of(sock: socket.socket, scheme: str) -> str:
    """The URL a user can type."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def close_all(sockets: Iterable[socket.socket | None]) -> None:
    """Close the sockets that there are."""
    for sock in sockets:
        if sock is not None:
            sock.close()
