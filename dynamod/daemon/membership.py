"""The node in its cluster: the bridge to other nodes, what the daemon says of itself, machines of the same name."""

import asyncio
import logging
import os
import time
from typing import Any

import msgspec

from dynamod import __version__
from dynamod.actor import Actor, Backoff, Spec, System
from dynamod.discovery.backend import Bridge
from dynamod.discovery.etcd.bridge import EtcdBridge
from dynamod.discovery.etcd.client import library
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.discovery import NodeRecord
from dynamod.message.protocol import OLDEST_NODE, PROTOCOL
from dynamod.transport.signing import Signing

from .cluster import Cluster, cluster_of
from .names import node_key, watch_namesakes
from .parts import ALWAYS

log = logging.getLogger("dynamod.daemon")

BRIDGE = "bridge"
"""The actor beneath `cluster/`."""


class Membership:
    """`settings`: where other nodes are; a node alone until `find`. `signing`: signs what the daemon says to others.

    `record`: what the daemon says of itself. It stands in the registry of the cluster, where there is one.
    """

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self.settings = Cluster()
        self.signing = Signing()
        self._bridge: Bridge | None = None
        self._namesakes: set[str] = set()  # other daemons of our name
        self._place: tuple[str, int] | None = None  # key and lease of `record` in the registry
        self.record = NodeRecord(__version__, PROTOCOL, OLDEST_NODE, os.getpid(), time.time())

    async def find(self) -> None:
        """Read the environment, or look for servers at their usual ports. Raises UserError."""
        self.settings = await asyncio.to_thread(cluster_of)
        if self.settings.etcd is not None:
            library()  # without it nothing starts

    @property
    def parts(self) -> list[str]:
        """Paths of the actors that serve the cluster, for the watchdog."""
        return [f"cluster/{BRIDGE}"] if self.settings.joined else []

    async def join(self, system: System, name: str, lease: int) -> None:
        """Exchange keys with other nodes, where there is a cluster. `lease`: of the keys of the node itself."""
        if not self.settings.joined:
            return
        where = "found at the usual ports of this machine" if self.settings.found else "as named"
        log.info("this node is %s in the cluster of %s (%s)", name, self._store(), where)
        self._place = node_key(name, lease), lease
        self._publish()
        self._namesakes = watch_namesakes(self._registry, name, lease)

        def bridge() -> Actor:
            actor, self._bridge = self._make_bridge(name)
            return actor

        supervisor = await system.supervisor("cluster", ALWAYS)
        supervisor.start_child(Spec(BRIDGE, bridge, backoff=Backoff()))

    def _make_bridge(self, name: str) -> tuple[Actor, Bridge]:
        settings = self.settings
        if settings.backend is not None:
            return settings.backend.bridge(self._registry, name)
        assert settings.etcd is not None
        etcd = EtcdBridge(self._registry, settings.etcd, self.signing)
        return etcd, etcd

    def _store(self) -> str:
        """The store of all nodes with its address; empty where there is none."""
        etcd, backend = self.settings.etcd, self.settings.backend
        if backend is not None:
            return str(backend)
        return f"etcd at {', '.join(map(str, etcd.endpoints))}" if etcd is not None else ""

    def say(self, feature: str, section: Any) -> None:
        """Put what a feature says of this daemon into `record`. `section`: a struct, encodable as JSON."""
        sections = {**self.record.sections, feature: msgspec.to_builtins(section)}
        self.record = msgspec.structs.replace(self.record, sections=sections)
        self._publish()

    def _publish(self) -> None:
        if self._place is not None:
            key, lease = self._place
            self._registry.put(key, msgspec.json.encode(self.record), lease)

    def facts(self) -> dict[str, Any] | None:
        """How this node is joined to others; None when it is alone."""
        settings = self.settings
        if not settings.joined and not settings.variables:
            return None
        known = self._bridge.inspection() if self._bridge is not None else {}
        return {
            "etcd": known.get("endpoint", "") if settings.etcd is not None else "",
            "store": self._store(),
            "connected": bool(known.get("connected")),
            "error": str(known.get("last_error", "")) if not known.get("connected") else "",
            "nats": settings.nats.get("NATS_SERVER", "").rpartition("@")[2],
            "tcp": settings.tcp.get("DYNAMOD_TCP_ADDRESS", ""),
            "foreign_keys": self._registry.statistics().foreign,
            "namesakes": len(self._namesakes),
        }
