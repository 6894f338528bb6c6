"""Listening sockets: bound by the daemon, inherited by the processes that accept on them.

Without a host a component listens at the loopback of both families. Sockets are bound plainly, so that a stranger on
the port is an error and never a silent share; they are shared by inheritance, so that several ingress processes serve
one port and a restart refuses no connection.
"""

import contextlib
import errno
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamod.message.errors import UserError
from dynamod.message.tls import TlsFiles

from .port_owner import port_owner

LOOPBACK = "localhost"
"""The host without a `host` setting: 127.0.0.1 and, where the machine has it, ::1. Other machines do not reach it."""
PORT_ATTEMPTS = 20
"""How many free ports are tried until one is free at every address."""

Sockets = tuple[socket.socket, ...]
"""Listening sockets of one component, one per address, all with the same port. Empty: it does not listen."""


def hosts_of(value: object) -> tuple[str, ...]:
    """The hosts that a `host` setting names: a list, or text with commas. Raises UserError for anything else."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise UserError(f"`host` is {value!r}", "give an address, a name, or a list of them")
    return tuple(dict.fromkeys(name for one in given if (name := str(one).strip()))) or (LOOPBACK,)


def listen(hosts: Sequence[str], port: int, subject: str, owner: Callable[[int], str] = port_owner) -> Sockets:
    """Sockets that listen at all of these hosts with one port; 0 takes a port that is free at each.

    `owner`: names the listener of a port, empty when that is not known.
    Raises UserError that says what to do when the port cannot be had.
    """
    places = list(dict.fromkeys(place for host in hosts for place in _places(host, subject)))
    attempts = PORT_ATTEMPTS if port == 0 and len(places) > 1 else 1
    for attempt in range(1, attempts + 1):
        with contextlib.ExitStack() as undo:
            found, chosen = list[socket.socket](), port
            try:
                for place in places:
                    if (sock := _bound(place, chosen, subject, owner, alone=len(places) == 1)) is not None:
                        undo.callback(sock.close)
                        found.append(sock)
                        chosen = sock.getsockname()[1]
            except UserError:
                if attempt == attempts or chosen == 0:
                    raise
                continue
            undo.pop_all()
            return tuple(found)
    raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class _Place:
    """An address to listen at. `optional`: a machine may lack it."""

    family: int
    address: tuple[Any, ...]  # as getaddrinfo has it, without a port
    optional: bool = False


def _places(host: str, subject: str) -> list[_Place]:
    if host == LOOPBACK:
        return [
            _Place(socket.AF_INET, ("127.0.0.1", 0)),
            _Place(socket.AF_INET6, ("::1", 0, 0, 0), optional=True),
        ]
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{subject} cannot listen on '{host}': {reason}", "check `host`") from None
    return [_Place(family, address)]


def _bound(place: _Place, port: int, subject: str, owner: Callable[[int], str], *, alone: bool) -> socket.socket | None:
    """A socket that listens; None where the machine lacks an optional address. Raises UserError."""
    host = place.address[0]
    sock: socket.socket | None = None
    try:
        sock = socket.socket(place.family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if place.family == socket.AF_INET6 and not alone:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # else `::` would take the IPv4 ports too
        sock.bind((host, port, *place.address[2:]))
        sock.listen(4096)
        return sock
    except OSError as error:
        if sock is not None:
            sock.close()
        if place.optional and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return None
        if error.errno == errno.EADDRINUSE:
            by = f" by {found}" if (found := owner(port)) else ""
            raise UserError(
                f"{subject} cannot listen: port {port} is in use{by}",
                "choose another port or stop its owner",
            ) from None
        if error.errno == errno.EACCES:
            raise UserError(f"{subject} may not listen on port {port}", "choose a port above 1023") from None
        raise UserError(
            f"{subject} cannot listen on {host} port {port}: {error.strerror}", "check host and port"
        ) from None


def tls_files(configs: Iterable[Mapping[str, Any]]) -> TlsFiles | None:
    """The files with which components of these configurations serve HTTPS; None: HTTP."""
    for config in configs:
        found = {key.replace("-", "_"): value for key, value in config.items()}
        if found.get("tls_cert_path"):
            key, client_ca = found.get("tls_key_path", ""), found.get("tls_client_ca_cert_path", "")
            return TlsFiles(found["tls_cert_path"], key, client_ca)
    return None


def url_of(sockets: Sockets, scheme: str) -> str:
    """The URL a user can type."""
    host, port = sockets[0].getsockname()[:2]
    if host in ("0.0.0.0", "::") or {sock.getsockname()[0] for sock in sockets} == {"127.0.0.1", "::1"}:
        host = "localhost"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close all of these sockets."""
    for sock in sockets:
        sock.close()
