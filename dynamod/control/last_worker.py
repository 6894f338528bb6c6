"""Whether a change takes away the last worker of a model, on all nodes: the change then needs `force`."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dynamod.daemon.attached import AttachedGraph
from dynamod.daemon.runner import GraphRunner
from dynamod.daemon.served import ready_workers
from dynamod.discovery.keys import (
    CARDS,
    EXITED,
    INSTANCES,
    PARKED,
    QUARANTINED,
    STATIC,
    exited_key,
    quarantine_key,
    static_card_key,
)
from dynamod.discovery.records import decoded
from dynamod.extension.installed import helpers_of, pool_of
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import UserError
from dynamod.message.pools import ParkedModel
from dynamod.runtime.components import starts_workers

from .names import means

if TYPE_CHECKING:
    from dynamod.daemon.node import Node


class LastWorker(UserError):
    """The change leaves models without a worker that answers, and `force` is not set."""

    def __init__(self, models: Collection[str], component: str) -> None:
        self.models = sorted(models)
        several = len(self.models) > 1
        super().__init__(
            f"{'models' if several else 'model'} {', '.join(self.models)} will not be served: "
            f"no worker other than {component} serves {'them' if several else 'it'}",
            "use `--force` to do it nevertheless (`force` in the control API)",
        )


class ModelWorker(msgspec.Struct, frozen=True):
    """One worker of a model that takes requests now. `pool`: of its instance; not empty: it answers no clients."""

    lease: int
    card: ModelCard
    pool: str


def lost(places: Iterable[ModelWorker], gone: Collection[int], roles: Mapping[int, str]) -> set[str]:
    """Models that are served by these workers, and no longer when leases are `gone`, or have other `roles`."""
    before = list(places)
    after = [
        ModelWorker(one.lease, one.card, pool_of(roles[one.lease]) if one.lease in roles else one.pool)
        for one in before
        if one.lease not in gone
    ]
    return _served(before) - _served(after)


def _served(places: Collection[ModelWorker]) -> set[str]:
    answering = {name.name: one for one in places if not one.pool for name in one.card.each()}
    helpers = {(one.card.name, one.pool) for one in places}
    return {
        name
        for name, one in answering.items()
        if all((one.card.name, role) in helpers for role in helpers_of(one.card.capabilities))
    }


def require_others_than(
    node: "Node",
    graph: GraphRunner | AttachedGraph,
    component: str,
    *,
    force: bool,
    keep: int = 0,
    role: str = "",
    by_hand: bool = True,
) -> None:
    """Refuse a change of a component that takes a model's last worker away, without `force`. Raises LastWorker.

    `keep`: replicas that stay. `role`, `by_hand`: as for `require_others`.
    """
    rows = [row for row in graph.rows() if row.state != "Draining" and means(row, component)]
    stay = sorted({row.replica for row in rows})[:keep]
    pids = {row.pid for row in rows if row.replica not in stay}
    if not force:
        require_others(node, graph, component, pids, role, by_hand=by_hand)


def require_others(
    node: "Node",
    graph: GraphRunner | AttachedGraph,
    component: str,
    pids: Collection[int],
    role: str = "",
    *,
    by_hand: bool = True,
) -> None:
    """Raises LastWorker when processes of a component may not end, or get this role.

    A static worker is the only one of the model at its address, and it keeps its role.
    A model whose workers are started when a request asks for it is served without one. `by_hand`: the change ends
    that, since planners leave a pool alone whose size was set by hand.
    """
    services = graph.graph.services.values() if isinstance(graph, GraphRunner) else ()
    if any(starts_workers(one.component_kind) for one in services):
        return
    leases = node.link.leases()
    rows = node.graphs.rows()
    draining = {leases.get(row.pid, 0) for row in rows if row.state == "Draining"}
    staying = {leases.get(row.pid, 0) for row in rows} - draining
    leaving = {*node.registry.leases()} - staying  # a process without a row ends, or has ended: its lease lives on
    changed = {leases.get(pid, 0) for pid in pids} - leaving
    places = [one for one in _places(node) if one.lease not in leaving]
    if role:
        can = {one.lease for one in places if one.card.capabilities.role_switch}
        models = lost(places, (), dict.fromkeys(changed & can, role))
    else:
        models = lost(places, changed, {}) | _static(node, changed)
    if not by_hand:
        models -= _parked(node)
    if models:
        raise LastWorker(models, component)


def _places(node: "Node") -> list[ModelWorker]:
    """All workers of the cluster that take requests now."""
    registry = node.registry
    out = {key for prefix in (EXITED, QUARANTINED) for key, _ in registry.items(prefix)}
    return [
        ModelWorker(instance.instance_id, card, instance.pool)
        for instance, card in ready_workers(dict([*registry.items(INSTANCES), *registry.items(CARDS)]))
        if not {exited_key(instance.instance_id), quarantine_key(instance.instance_id)} & out
    ]


def _static(node: "Node", gone: Collection[int]) -> set[str]:
    """Models of static workers whose leases are `gone`, with their addresses: at each there is one worker only."""
    lost_models = set[str]()
    for key, value in node.registry.items(STATIC):
        instance = decoded(key, value, Instance)
        if instance is not None and instance.instance_id in gone:
            held = node.registry.own(static_card_key(instance))  # none: an endpoint without a model
            card = decoded(static_card_key(instance), held[0] if held is not None else None, ModelCard)
            lost_models |= {f"{card.name} at dyn://{instance.path}"} if card is not None else set()
    return lost_models


def _parked(node: "Node") -> set[str]:
    records = (decoded(key, value, ParkedModel) for key, value in node.registry.items(PARKED))
    return {one.card.name for one in records if one is not None and not one.problem}
