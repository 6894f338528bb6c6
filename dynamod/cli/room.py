"""Whether a machine has room for the KV tiers of all workers that a graph starts there."""

from collections.abc import Mapping
from typing import Any

from dynamod.graph.graph import Graph
from dynamod.graph.typed import validate
from dynamod.kvcache.tiers.settings import Share, TierSettings, shortage
from dynamod.message.errors import UserError
from dynamod.runtime.components import kind_of


def check_room(graph: Graph, arguments: Mapping[str, Any], node: str) -> None:
    """Raise UserError where the tiers of all workers on `node` do not fit. `arguments`: of engines, by component.

    Workers that planners add later are not counted.
    """
    shares: list[Share] = []
    for name, read in arguments.items():
        spec = graph.services[name]
        here = spec.enabled and (not spec.nodes or node in spec.nodes)
        if here and isinstance(read, TierSettings) and read.takes_room and read.tiered:
            shares.append(Share(name, spec.workers, read))
    problem = shortage(_together(graph, shares))
    if problem is not None:
        hint = "each worker has a tier of its own: make them smaller, or the workers fewer"
        raise UserError(problem, hint)


def _together(graph: Graph, shares: list[Share]) -> list[Share]:
    """The shares of the workers that run at the same time: of models on demand the largest that the budget allows."""
    for spec in graph.services.values():
        kind = kind_of(spec.component_kind) if spec.component_kind else None
        if kind is None or kind.starts is None:
            continue
        components, most = kind.starts(validate(kind.settings(), spec.config, spec.name))
        largest = sorted(
            (share._replace(workers=1) for share in shares if share.component in components),
            key=lambda share: share.tiers.kv_host_gb + share.tiers.kv_disk_gb,
            reverse=True,
        )
        shares = [share for share in shares if share.component not in components]
        shares += largest[:most]
    return shares
