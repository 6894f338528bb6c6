"""The other nodes as the registry shows them, and what a name like `NODE/Component` means."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynamod.daemon.names import NODES
from dynamod.discovery.records import decoded
from dynamod.message.discovery import Instance, NodeRecord
from dynamod.observe.bounded import bounded

from .messages import CommandPlace

if TYPE_CHECKING:
    from dynamod.discovery.memory import MemoryRegistry

FEATURE = "cluster"
MAX_LOST = 64
"""Nodes that are remembered after they have left the registry without a word."""
LOST_KEPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A daemon by its key in the registry. `lost`: when it left the registry without a word (seconds since the epoch).

    `machine`: tells machines of one name apart.
    """

    name: str
    machine: str
    lease: int
    record: NodeRecord
    lost: float | None = None

    @property
    def place(self) -> CommandPlace:
        """Where the daemon takes commands."""
        return self.record.section(FEATURE, CommandPlace)

    def instance(self, transport: str) -> Instance:
        """The daemon's endpoint for commands, over one of its transports."""
        where = {transport: self.place.transport[transport]}
        return Instance("dynamod", "daemon", "commands", self.lease, where, node=self.name)


def node_of(key: str, value: bytes) -> KnownNode | None:
    """What a key of the registry says of a node; None for a key or value that says nothing readable."""
    name, _, rest = key.removeprefix(NODES).partition("/")
    machine, _, lease = rest.partition("/")
    try:
        number = int(lease, 16)
    except ValueError:
        return None
    # releases without this feature put an empty value
    record = decoded(key, value, NodeRecord) if value else NodeRecord()
    if record is None or not name or not f"{name}{machine}".isprintable():  # names are shown in terminals
        return None
    return KnownNode(name, machine, number, record)


class KnownNodes:
    """The nodes of the cluster, kept current. `own`: name and machine of this node. `now`: seconds since the epoch."""

    def __init__(self, own: tuple[str, str], now: Callable[[], float] = time.time) -> None:
        self._own, self._now = own, now
        self._live: dict[str, KnownNode] = {}
        self._lost: dict[tuple[str, str], KnownNode] = {}
        bounded(self, "nodes that are lost", MAX_LOST, lambda one: len(one._lost), "nodes")

    def follow(self, registry: "MemoryRegistry") -> Callable[[], None]:
        """Read the registry from now on; returns how to stop that."""
        return registry.watch(NODES, self.changed)

    def changed(self, key: str, value: bytes | None) -> None:
        """A key of a node has a value, or none any more."""
        before = self._live.pop(key, None)
        if value is not None:
            if (found := node_of(key, value)) is not None:
                self._live[key] = found
                self._lost.pop((found.name, found.machine), None)
        elif before is not None and self._should_be_here(before):
            self._lost[before.name, before.machine] = replace(before, lost=self._now())
            if len(self._lost) > MAX_LOST:
                del self._lost[next(iter(self._lost))]

    def _should_be_here(self, one: KnownNode) -> bool:
        """Whether a daemon that has left would have said so, and no other daemon has its place."""
        lives = any((other.name, other.machine) == (one.name, one.machine) for other in self._live.values())
        return bool(one.place.transport) and not one.place.leaving and not lives

    def others(self) -> list[KnownNode]:
        """All nodes but this one, by name: of each the daemon that started last. Lost nodes are among them."""
        found = {place: one for place, one in self._lost.items() if self._now() - (one.lost or 0.0) < LOST_KEPT_S}
        for one in sorted(self._live.values(), key=lambda one: one.record.started):
            found[one.name, one.machine] = one  # a daemon that was killed leaves a key until its lease expires
        found.pop(self._own, None)
        return [found[place] for place in sorted(found)]

    def named(self, name: str) -> list[KnownNode]:
        """The nodes of a name: several machines may have the same."""
        return [one for one in self.others() if one.name == name]


def target(name: str, graphs: Collection[str], nodes: Collection[str]) -> tuple[str, str] | None:
    """The node and the rest of a name like `two/Worker`, `two/agg/Worker` or `two/`; None: it means no node.

    A graph of this node goes before a node of the same name. `nodes`: with this one.
    """
    first, slash, rest = name.partition("/")
    return (first, rest) if slash and first not in graphs and first in nodes else None
