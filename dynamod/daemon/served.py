"""Which models can be asked at the ingress processes of this node, as they have published it: for `ps` and `status`.

An ingress process publishes a model while it would place a request for it (`ingress/askable.py`). A worker counts when
that is so for one of its models. Where no ingress process runs, a worker counts with what it has published.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from dynamod.discovery.keys import CARDS, INSTANCES, quarantine_key
from dynamod.discovery.records import decoded
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.rows import Row
from dynamod.runtime.components import is_ingress
from dynamod.runtime.components.served import SERVED, ServedModel

from .attached import AttachedGraph
from .runner import GraphRunner

if TYPE_CHECKING:
    from .node import Node

NOT_LOADED = "no ingress has loaded its model"
"""What `ps` says of a worker that is Ready and gets no requests yet."""


class GraphState(msgspec.Struct, frozen=True):
    """What a graph serves. `ready`: all its processes are Ready, and its models can be asked. `models`: those.

    `silent`: it has an ingress and all is Ready, but no model can be asked.
    """

    ready: bool
    models: list[str]
    silent: bool = False


class ServedModels:
    """One look at the registry of the node."""

    def __init__(self, node: "Node") -> None:
        self._registry, self._leases = node.registry, node.link.leases()
        self._stuck = {one.lease for one in node.link.connections if one.why}
        self._has_ingress = any(has_ingress(runner) for runner in node.graphs.running.values())
        self._by_lease = {lease: self._asked_at(lease) for lease in self._leases.values()}
        self._asked = {name for names in self._by_lease.values() for name in names}

    def row(self, row: Row) -> Row:
        """The row of `ps`, with the models that can be asked through its process."""
        lease = self._leases.get(row.pid)
        if lease is None:
            return row
        published = self._published_by(lease)
        usable = published & self._asked if self._has_ingress else published
        changed = msgspec.structs.replace(row, models=sorted(usable | self._by_lease[lease]))
        if published and not usable and row.state == "Ready" and not row.detail:
            changed = msgspec.structs.replace(changed, detail=NOT_LOADED)
        return changed

    def graph(self, graph: GraphRunner | AttachedGraph) -> GraphState:
        """What a graph serves now."""
        rows = [row for row in map(self.row, graph.rows()) if row.state != "Draining"]
        up = bool(rows) and all(row.state == "Ready" for row in rows)
        loaded = up and not any(row.detail == NOT_LOADED for row in rows)
        if not isinstance(graph, GraphRunner) or not has_ingress(graph):
            return GraphState(loaded, sorted({name for row in rows for name in row.models}))
        leases = {self._leases.get(row.pid, 0) for row in rows}
        models = {name for lease in leases for name in self._by_lease.get(lease, ())}
        return GraphState(loaded and bool(models), sorted(models), up and not models)

    def models(self) -> list[str]:
        """All that can be asked at this node."""
        own = self._leases.values() if not self._has_ingress else ()
        return sorted(self._asked.union(*(self._published_by(lease) for lease in own)))

    def _asked_at(self, lease: int) -> set[str]:
        """Models that can be asked at an ingress process; none at one that is stuck."""
        if lease in self._stuck:
            return set()
        found = (
            decoded(key, value, ServedModel) for key, value in self._values(lease).items() if key.startswith(SERVED)
        )
        return {one.model for one in found if one is not None}

    def _published_by(self, lease: int) -> set[str]:
        """Models for clients that a worker has published, while requests may go to it."""
        if self._registry.own(quarantine_key(lease)) is not None:
            return set()
        cards = (card for _, card in ready_workers(self._values(lease)) if card.types)
        return {one.name for card in cards for one in card.each()}

    def _values(self, lease: int) -> dict[str, bytes]:
        """What a process has put into the registry, by key."""
        held = ((key, self._registry.own(key)) for key in self._registry.keys_of(lease))
        return {key: found[0] for key, found in held if found is not None}


def ready_workers(values: Mapping[str, bytes]) -> Iterator[tuple[Instance, ModelCard]]:
    """Instances that have published a model and take requests, among values of the registry by their keys.

    Static workers publish no model, and are not among them.
    """
    for key, value in values.items():
        card_key = f"{CARDS}{key.removeprefix(INSTANCES)}"
        if not key.startswith(INSTANCES) or (card := decoded(card_key, values.get(card_key), ModelCard)) is None:
            continue
        instance = decoded(key, value, Instance)
        if instance is not None and instance.state == "ready":
            yield instance, card


def has_ingress(runner: GraphRunner) -> bool:
    """Whether the graph runs an ingress on this node."""
    return any(is_ingress(runner.graph.services[name].component_kind) for name in runner.components())
