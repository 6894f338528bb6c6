"""The other nodes: where etcd, NATS or what stands for them are, for the node's daemon and all its processes.

Environment variables say it. Without them a daemon looks once, at its start, whether both servers answer at their usual
ports of this machine (`dynamo infra up`, or the compose file) and are the same user's or root's: then it joins them.
DYNAMOD_CLUSTER=off forbids that.
"""

import json
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynamod.discovery.backend import Backend
from dynamod.discovery.etcd.settings import EtcdSettings
from dynamod.extension.installed import discovery
from dynamod.message.errors import UserError
from dynamod.transport import tcp_settings
from dynamod.transport.tls import CA, CERT, KEY, MODE, REVOKED, SERVER_NAME, PeerTls

from .port_owner import listeners

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

log = logging.getLogger("dynamod.daemon")

VARIABLE = "DYNAMOD_CLUSTER"
DISCOVERY = "DYNAMOD_DISCOVERY"
ETCD = "etcd"
"""The store of all nodes that the core has; the others are of features."""
NATS_PORT, ETCD_PORT = 4222, 2379
NATS_VARIABLES = (
    *("NATS_SERVER", "NATS_AUTH_USERNAME", "NATS_AUTH_PASSWORD", "NATS_AUTH_TOKEN", "NATS_AUTH_NKEY"),
    *("NATS_AUTH_CREDENTIALS_FILE", "NATS_TLS_CA", "NATS_TLS_CERT", "NATS_TLS_KEY"),
)
NAME_THEM = "name them with NATS_SERVER and ETCD_ENDPOINTS if they are yours"
LOOK = 0.3
"""Seconds for a server of this machine to answer."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`etcd`, `backend`: the store of all nodes; both None: this node is alone.

    `nats`, `tcp`, `peer_tls`: the variables that every process of the node gets; empty without. `peer_tls`: of the
    certificates that processes show to each other.
    """

    etcd: EtcdSettings | None = None
    nats: Mapping[str, str] = field(default_factory=dict[str, str])
    peer_tls: Mapping[str, str] = field(default_factory=dict[str, str])
    tcp: Mapping[str, str] = field(default_factory=dict[str, str])
    backend: Backend | None = None
    found: bool = False  # not named, but found on this machine

    @property
    def variables(self) -> dict[str, str]:
        """What each process is told of the other nodes."""
        return {**self.nats, **self.tcp, **self.peer_tls}

    @property
    def joined(self) -> bool:
        """Whether there is a store of all nodes."""
        return self.etcd is not None or self.backend is not None


def cluster_of(
    environ: Mapping[str, str] = os.environ, look: "Callable[[], tuple[str, str] | None] | None" = None
) -> Cluster:
    """Read the environment, and perhaps look for servers. Raises UserError that names the variable."""
    mode = environ.get(VARIABLE, "auto")
    if mode not in ("auto", "off"):
        raise UserError(f"{VARIABLE} is {mode!r}", "auto (default) or off")
    if mode == "off":
        return Cluster()
    store, tcp, tls = _store(environ), _tcp(environ), _peer_tls(environ)
    if store != ETCD:
        return Cluster(None, _nats(environ), tls, tcp, discovery(store)(environ))
    etcd, nats = EtcdSettings.from_environment(environ), _nats(environ)
    if etcd is not None and etcd.tls:
        etcd.tls_context()
    if etcd is not None or nats:
        if etcd is not None and not (nats or tcp):
            log.warning(
                "ETCD_ENDPOINTS is set, NATS_SERVER and %s are not: workers of other nodes are seen, not reached",
                tcp_settings.ADDRESS,
            )
        if etcd is None:
            log.warning("NATS_SERVER is set, ETCD_ENDPOINTS is not: only static workers of other nodes are reached")
        return Cluster(etcd, nats, tls, tcp)
    found = (look or servers_here)()
    if found is None:
        return Cluster(tcp=tcp)
    found_nats, found_etcd = found
    named = {**environ, "ETCD_ENDPOINTS": found_etcd}
    servers = {**_named(environ), "NATS_SERVER": found_nats}
    return Cluster(EtcdSettings.from_environment(named), servers, tls, tcp, found=True)


def _peer_tls(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of PeerTls; wrong ones are an error now. Files are absolute: processes work in other folders."""
    found = PeerTls.from_environment(environ)
    if found is None:
        return {}
    files = {CA: str(found.ca), CERT: str(found.cert), KEY: str(found.key), SERVER_NAME: found.name}
    revoked = {REVOKED: str(found.revoked)} if found.revoked is not None else {}
    return {**files, **revoked, MODE: "accept" if found.accept else "require"}


def _store(environ: Mapping[str, str]) -> str:
    """The store of all nodes that the environment asks for. Raises UserError."""
    store = environ.get(DISCOVERY, "").strip() or ETCD
    if store != ETCD:
        discovery(store)
        if environ.get("ETCD_ENDPOINTS"):
            raise UserError(f"{DISCOVERY} is {store!r} and ETCD_ENDPOINTS is set", "nodes have one store: unset one")
    return store


def _named(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in NATS_VARIABLES if environ.get(name)}


def _nats(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of NATS, where it is named. Raises UserError."""
    nats = _named(environ)
    if "NATS_SERVER" not in nats:
        return {}
    from dynamod.transport.nats.settings import NatsSettings

    settings = NatsSettings.from_environment(environ)  # wrong ones are an error now
    if settings is not None and settings.tls:
        settings.tls_context()
    return nats


def _tcp(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of requests over TCP, where this node has an address for them. Raises UserError."""
    if tcp_settings.TcpSettings.from_environment(environ) is None:
        return {}
    return {name: environ[name] for name in tcp_settings.VARIABLES if environ.get(name)}


def servers_here() -> tuple[str, str] | None:
    """NATS and etcd at their usual ports of this machine, when both answer as such and are ours or root's.

    Any user may listen at these ports; the server there could read requests and answer them.
    """
    nats, etcd = f"nats://127.0.0.1:{NATS_PORT}", f"http://127.0.0.1:{ETCD_PORT}"
    if not (nats_answers(nats, LOOK) and etcd_answers(etcd, LOOK)):
        return None
    owners = {one.user for port in (NATS_PORT, ETCD_PORT) for one in listeners(port)}
    if not owners or owners - {0, os.getuid()}:
        others = ", ".join(map(str, sorted(owners - {0, os.getuid()}))) or "an unknown user"
        log.warning("NATS and etcd at their usual ports belong to user %s and are not joined; %s", others, NAME_THEM)
        return None
    return nats, etcd


def nats_answers(url: str, timeout: float = 1.0) -> bool:
    """Whether a NATS server greets at a URL."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout) as sock:
            sock.settimeout(timeout)
            return sock.recv(5) == b"INFO "
    except (OSError, ValueError):
        return False


def etcd_answers(url: str, timeout: float = 1.0, tls: "ssl.SSLContext | None" = None) -> bool:
    """Whether a healthy etcd answers at a URL. `tls`: for https."""
    import urllib.request  # slow to import, and rarely needed

    secure = [urllib.request.HTTPSHandler(context=tls)] if tls is not None else []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *secure)
    try:
        with opener.open(f"{url}/health", timeout=timeout) as answer:
            return bool(json.load(answer).get("health") == "true")
    except (OSError, ValueError, AttributeError):
        return False
