"""Whether a machine has room for the KV tiers of all workers that a graph starts there."""

from collections.abc import Mapping
from typing import Any

from dynamod.graph.graph import ON_DEMAND, Graph
from dynamod.graph.typed import validate
from dynamod.kvcache.tiers.settings import Share, TierSettings, shortage
from dynamod.message.errors import UserError
from dynamod.ondemand.settings import OnDemandSettings


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
    """Without those of models on demand that are not loaded while larger ones are."""
    for spec in graph.services.values():
        if spec.component_kind != ON_DEMAND:
            continue
        settings: OnDemandSettings = validate(OnDemandSettings, spec.config, spec.name)
        models, budget = settings.read()
        components = {model.component for model in models.values()}
        largest = sorted(
            (share._replace(workers=1) for share in shares if share.component in components),
            key=lambda share: share.tiers.kv_host_gb + share.tiers.kv_disk_gb,
            reverse=True,
        )
        shares = [share for share in shares if share.component not in components]
        shares += largest[: budget.models]
    return shares
