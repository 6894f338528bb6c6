"""The other nodes: where etcd and NATS are, for the daemon that holds this node and for all its processes.

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

from dynamod.discovery.etcd.settings import EtcdSettings
from dynamod.message.errors import UserError
from dynamod.transport.tls import CA, CERT, KEY, SERVER_NAME, PeerTls

from .port_owner import listeners

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

log = logging.getLogger("dynamod.daemon")

VARIABLE = "DYNAMOD_CLUSTER"
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
    """`etcd` None: this node is alone. `nats`: variables that say how NATS is reached; empty without.

    `peer_tls`: those of the certificates that processes of nodes show to each other.
    """

    etcd: EtcdSettings | None = None
    nats: Mapping[str, str] = field(default_factory=dict[str, str])
    peer_tls: Mapping[str, str] = field(default_factory=dict[str, str])
    found: bool = False  # not named, but found on this machine

    @property
    def variables(self) -> dict[str, str]:
        """What every process of the node gets, to reach others."""
        return {**self.nats, **self.peer_tls}


def cluster_of(
    environ: Mapping[str, str] = os.environ, look: "Callable[[], tuple[str, str] | None] | None" = None
) -> Cluster:
    """Read the environment, and perhaps look for servers. Raises UserError that names the variable."""
    mode = environ.get(VARIABLE, "auto")
    if mode not in ("auto", "off"):
        raise UserError(f"{VARIABLE} is {mode!r}", "auto (default) or off")
    if mode == "off":
        return Cluster()
    etcd = EtcdSettings.from_environment(environ)
    nats = {name: environ[name] for name in NATS_VARIABLES if environ.get(name)}
    if nats.get("NATS_SERVER"):
        from dynamod.transport.nats.settings import NatsSettings

        settings = NatsSettings.from_environment(environ)  # wrong ones are an error now
        if settings is not None and settings.tls:
            settings.tls_context()
    if etcd is not None and etcd.tls:
        etcd.tls_context()
    if etcd is not None or "NATS_SERVER" in nats:
        if etcd is not None and "NATS_SERVER" not in nats:
            log.warning("ETCD_ENDPOINTS is set and NATS_SERVER is not: workers of other nodes are seen, not reached")
        return Cluster(etcd, nats if "NATS_SERVER" in nats else {}, _peer_tls(environ))
    found = (look or servers_here)()
    if found is None:
        return Cluster()
    found_nats, found_etcd = found
    etcd = EtcdSettings.from_environment({**environ, "ETCD_ENDPOINTS": found_etcd})
    return Cluster(etcd, {**nats, "NATS_SERVER": found_nats}, _peer_tls(environ), found=True)


def _peer_tls(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of PeerTls; wrong ones are an error now. Files are absolute: processes work in other folders."""
    found = PeerTls.from_environment(environ)
    if found is None:
        return {}
    return {CA: str(found.ca), CERT: str(found.cert), KEY: str(found.key), SERVER_NAME: found.name}


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
