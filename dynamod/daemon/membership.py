"""The node in its cluster: the bridge to etcd, what the daemon says of itself, other machines of the same name."""

import asyncio
import logging
import os
import time
from typing import Any

import msgspec

from dynamod import __version__
from dynamod.actor import Backoff, Spec, System
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


class Membership:
    """`settings`: where etcd and NATS are; a node alone until `find`. `signing`: signs what the daemon says to others.

    `record`: what the daemon says of itself. It stands in the registry of the cluster, where there is one.
    """

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self.settings = Cluster()
        self.signing = Signing()
        self._bridge: EtcdBridge | None = None
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
        return ["cluster/etcd"] if self.settings.etcd is not None else []

    async def join(self, system: System, name: str, lease: int) -> None:
        """Exchange keys with other nodes, where there is a cluster. `lease`: of the keys of the node itself."""
        if (etcd := self.settings.etcd) is None:
            return
        where = "found at the usual ports of this machine" if self.settings.found else "as named"
        endpoints = ", ".join(map(str, etcd.endpoints))
        log.info("this node is %s in the cluster of etcd at %s (%s)", name, endpoints, where)
        self._place = node_key(name, lease), lease
        self._publish()
        self._namesakes = watch_namesakes(self._registry, name, lease)

        def bridge() -> EtcdBridge:
            self._bridge = EtcdBridge(self._registry, etcd, self.signing)
            return self._bridge

        supervisor = await system.supervisor("cluster", ALWAYS)
        supervisor.start_child(Spec("etcd", bridge, backoff=Backoff()))

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
        if self.settings.etcd is None and not self.settings.nats:
            return None
        etcd = self._bridge.inspection() if self._bridge is not None else {}
        return {
            "etcd": etcd.get("endpoint", ""),
            "connected": bool(etcd.get("connected")),
            "error": str(etcd.get("last_error", "")) if not etcd.get("connected") else "",
            "nats": self.settings.nats.get("NATS_SERVER", "").rpartition("@")[2],
            "foreign_keys": self._registry.statistics().foreign,
            "namesakes": len(self._namesakes),
        }
