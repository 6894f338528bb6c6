"""The rights of a client of the console (pure)."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from dynamod.http.context import Caller
from dynamod.http.errors import Forbidden

HEADER = "x-dynamod-console"
"""Header of each request that changes something. A page of another origin cannot send it."""
PROXIED = ("x-forwarded-for", "x-forwarded-host", "forwarded", "x-real-ip")
"""Headers of proxies: the client is another machine then, whatever the connection says."""
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Access:
    """What a client of the console may do. `admin`: read logs, change processes, see the requests of all keys.

    `owner`: the name of the key whose requests the client sees; None: those of all.
    """

    admin: bool
    owner: str | None = None


def access(
    headers: Mapping[str, str], remote: str | None, caller: Caller, *, keys: bool, console_admin: bool
) -> Access:
    """What the sender of a request may do. `keys`: the server has keys, and the caller has shown one of them.

    Raises Forbidden.
    """
    _check_origin(headers)
    if keys:
        admin = caller.client is not None and caller.client.key.admin
        return Access(admin, None if admin else caller.name)
    if not is_local(headers, remote):
        raise Forbidden(
            "without API keys the console answers only browsers of this machine that ask for localhost: "
            "open http://localhost:PORT there, or set `client_keys_file`"
        )
    return Access(console_admin)


def check_change(headers: Mapping[str, str], found: Access, *, keys: bool) -> None:
    """Raise Forbidden where the client may not change anything, or the request is not the console's."""
    check_admin(found, keys=keys)
    if headers.get(HEADER) != "1":
        raise Forbidden(f"a change needs the header `{HEADER}: 1`")


def check_admin(found: Access, *, keys: bool) -> None:
    """Raise Forbidden where the client may neither read logs nor change anything."""
    if not found.admin:
        raise Forbidden(f"logs and changes need {needs(keys=keys)}, or the command `dynamo console`")


def needs(*, keys: bool) -> str:
    """What logs and changes need. `keys`: the server has keys."""
    return "a key with `admin: true`" if keys else "`console_admin: true` of the frontend"


def is_local(headers: Mapping[str, str], remote: str | None) -> bool:
    """Whether the client is a program of this machine that asks for this machine by a local name."""
    if not _is_loopback(remote or "") or any(name in headers for name in PROXIED):
        return False
    return _host(headers.get("Host", "")) in LOCAL


def _check_origin(headers: Mapping[str, str]) -> None:
    """Pages of other origins may ask nothing here, also where `allowed_origins` lets pages ask the API."""
    origin = headers.get("Origin")
    other = origin is not None and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower()
    if other or headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("a page of another origin may not use the console")


def _host(text: str) -> str:
    """A Host header without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].lower().rstrip(".")


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
