"""Where etcd is and how to speak to it, from the environment variables that NVIDIA Dynamo reads."""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dynamod.message.errors import UserError
from dynamod.transport.credentials import client_context, tls_files, user_and_password

_TLS = ("ETCD_AUTH_CA", "ETCD_AUTH_CLIENT_CERT", "ETCD_AUTH_CLIENT_KEY")
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member of the cluster. `address` is `host:port`."""

    address: str
    tls: bool

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address}"

    @classmethod
    def parse(cls, text: str, *, tls: bool = False) -> "Endpoint":
        """Read `host:port`, with http:// or https:// before it (without, `tls` decides). Raises UserError."""
        scheme, separator, rest = text.strip().rpartition("://")
        address = rest.rstrip("/")
        if ":" not in address:
            address += ":2379"
        found = _AUTHORITY.fullmatch(address)
        if scheme not in ("", "http", "https") or (separator and not scheme) or found is None or int(found[1]) > 65535:
            raise UserError(
                f"ETCD_ENDPOINTS names '{text.strip()}', which is no endpoint",
                "write http://localhost:2379 or https://localhost:2379, several with commas between them",
            )
        return cls(address, scheme == "https" if scheme else tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """How a node reaches etcd. Times are seconds; `ttl` is how long a dead node's leases live on."""

    endpoints: tuple[Endpoint, ...]
    ttl: int = 10
    username: str = ""
    password: str = field(default="", repr=False)
    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "EtcdSettings | None":
        """Read the variables below; None when ETCD_ENDPOINTS is not set: then there is no etcd.

        ETCD_ENDPOINTS (comma separated), ETCD_LEASE_TTL, ETCD_AUTH_USERNAME, ETCD_AUTH_PASSWORD, ETCD_AUTH_CA,
        ETCD_AUTH_CLIENT_CERT, ETCD_AUTH_CLIENT_KEY. Endpoints without a scheme use TLS when one of its files is
        given. Raises UserError that names the variable.
        """
        env = os.environ if environ is None else environ
        texts = [part for part in env.get("ETCD_ENDPOINTS", "").split(",") if part.strip()]
        if not texts:
            return None
        ca, cert, key = tls_files(env, *_TLS)
        username, password = user_and_password(env, "ETCD_AUTH")
        endpoints = tuple(dict.fromkeys(Endpoint.parse(text, tls=bool(ca or cert)) for text in texts))
        if (ca or cert) and not any(endpoint.tls for endpoint in endpoints):
            name = "ETCD_AUTH_CA" if ca else "ETCD_AUTH_CLIENT_CERT"
            raise UserError(f"{name} is set, but ETCD_ENDPOINTS has no TLS endpoint", f"use https:// or unset {name}")
        return cls(
            endpoints=endpoints,
            ttl=_ttl(env),
            username=username,
            password=password,
            ca=ca,
            client_cert=cert,
            client_key=key,
        )

    @property
    def tls(self) -> bool:
        """Whether an endpoint is reached with TLS."""
        return any(endpoint.tls for endpoint in self.endpoints)

    def tls_context(self) -> ssl.SSLContext:
        """What TLS connections trust and show. Raises UserError for files of no use."""
        return client_context(_TLS, self.ca, self.client_cert, self.client_key)


def _ttl(env: Mapping[str, str]) -> int:
    text = env.get("ETCD_LEASE_TTL", "").strip() or "10"
    if not text.isdecimal() or not 1 <= int(text) <= 3600:
        raise UserError(f"ETCD_LEASE_TTL is '{text}'", "give whole seconds from 1 to 3600")
    return int(text)
