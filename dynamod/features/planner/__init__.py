"""The planner: how many workers each pool of a graph has, decided from what the workers do and what comes."""

from typing import TYPE_CHECKING, Any

from dynamod.extension.component import Component
from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamod.cli.options import Form
    from dynamod.extension.command import CommandHandler
    from dynamod.graph.graph import Graph, ServiceSpec

    from .settings import PlannerSettings


def _commands() -> object:
    from .cli import app

    return app


def _explain() -> "Callable[[str | None, Form], None]":
    from .cli import explain

    return explain


def _controls() -> "Sequence[CommandHandler[Any, Any]]":
    from .control import HANDLERS

    return HANDLERS


def _actor() -> object:
    from .actor import PlannerComponent

    return PlannerComponent


def _settings() -> type:
    from .settings import PlannerSettings

    return PlannerSettings


def _check(settings: "PlannerSettings", spec: "ServiceSpec", graph: "Graph") -> None:
    from .settings import check_budget

    check_budget(settings, spec, graph)


FEATURE = Feature(
    "planner",
    "pools of workers that grow and shrink with the load: the component Planner, dynamo planner",
    uses=("kubernetes",),
    commands={"planner": _commands},
    controls=_controls,
    explains={"planner": _explain},
    components={"planner": Component(_actor, _settings, _check)},
)
