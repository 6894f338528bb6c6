"""Models that are loaded when a request asks for them, and unloaded when no request does."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dynamod.extension.component import Component
from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from dynamod.graph.graph import Graph, ServiceSpec
    from dynamod.ingress.parts import ProcessorContext

    from .settings import OnDemandSettings


def _endpoints() -> Sequence[object]:
    from .endpoints import LoadModel, Running, UnloadModel

    return Running(), LoadModel(), UnloadModel()


def _actor() -> object:
    from .component import OnDemandComponent

    return OnDemandComponent


def _settings() -> type:
    from .settings import OnDemandSettings

    return OnDemandSettings


def _check(settings: "OnDemandSettings", _spec: "ServiceSpec", graph: "Graph") -> None:
    from .preflight import check_adapters

    check_adapters(settings, graph)


def _starts(settings: "OnDemandSettings") -> tuple[Collection[str], int | None]:
    models, budget = settings.read()
    return {model.component for model in models.values()}, budget.models


def _processor(context: "ProcessorContext") -> object:
    from .part import ModelsOnDemand

    return ModelsOnDemand(context)


FEATURE = Feature(
    "on_demand",
    "models that are loaded when a request asks for them, within a budget: `models:` in a config file",
    endpoints=_endpoints,
    processor=_processor,
    components={"ondemand": Component(_actor, _settings, _check, ingress=True, starts=_starts)},
)
