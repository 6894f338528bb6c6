"""Models that are loaded when a request asks for them, and unloaded when no request does."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from dynamod.extension.component import Component
from dynamod.extension.feature import ConfigKey, Feature

if TYPE_CHECKING:
    from dynamod.cli.flags import RunArguments
    from dynamod.graph.document import Document
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
    from .parked import ParkedModels

    return ParkedModels(context)


def _expand() -> "Callable[[Document, object], tuple[Document, str | None]]":
    from .models import expand

    return expand


def _run_models(arguments: "RunArguments") -> "Graph":
    from .run_models import models_graph

    return models_graph(arguments)


MODELS = {
    "type": "object",
    "additionalProperties": {"type": "object"},
    "description": "models that are loaded on demand, by the name for clients: engine, model, args, ttl, ...",
}
BUDGET = {"type": "object", "description": "what of them may be loaded at once: models, memory, patience"}

FEATURE = Feature(
    "on_demand",
    "models that are loaded when a request asks for them, within a budget: `models:` in a config file",
    endpoints=_endpoints,
    processor=_processor,
    config_keys={"models": ConfigKey(MODELS, _expand), "budget": ConfigKey(BUDGET)},
    run_models=_run_models,
    uses=("kubernetes",),
    components={"ondemand": Component(_actor, _settings, _check, ingress=True, starts=_starts)},
)
