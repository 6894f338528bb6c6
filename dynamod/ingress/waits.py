"""Counts requests without a token by stage and phase, and says why they wait for a worker (pure)."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dynamod.message.waits import Waits

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

AGGREGATED, DECODE = "aggregated", "decode"


def waits(
    dispatch: "Dispatcher", unanswered: Mapping[str, int], starts: Callable[[str], bool] = lambda _model: False
) -> Iterator[Waits]:
    """The stages of each model that can be asked.

    `unanswered`: by model, choices that a worker has and of which no token has come. `starts(model)`: a worker is
    started for requests that wait.
    """
    routers = dispatch.routers
    pooled = {model for (model, pool), router in routers.items() if pool and router.workers}
    for (model, pool), router in routers.items():
        if pool:
            waiting, sent = dispatch.waiting((model, pool)), router.statistics().active
            phase = pool
        else:
            counts = dispatch.counts[model]
            yield Waits(model, "preprocess", "", counts.preprocess.inside)
            waiting, sent = counts.route.inside, unanswered.get(model, 0)
            phase = DECODE if model in pooled else AGGREGATED
        why = _why(dispatch, (model, pool), starts) if waiting else ""
        yield Waits(model, "route", phase, waiting, why)
        yield Waits(model, "dispatch", phase, sent)


def _why(dispatch: "Dispatcher", key: tuple[str, str], starts: Callable[[str], bool]) -> str:
    """Why requests wait for a place, in words."""
    workers = f"{key[1]} worker" if key[1] else "worker"
    instances = dispatch.serving(key).instances
    if not instances:
        return f"a {workers} is being started" if starts(key[0]) else f"no {workers} is ready"
    router = dispatch.routers[key]
    busy = [why for one in instances if (why := router.state.busy(one.instance_id))]
    if len(busy) == len(instances):
        return f"{busy[0]}, at the only {workers}" if len(busy) == 1 else f"all {len(busy)} {workers}s are {busy[0]}"
    if dispatch.reserved(key) is not None:
        return f"a {workers} tries one request alone"
    return f"none of the {len(instances)} {workers}s that are ready may take it now"
