"""The components that ship, by the kind that a service names: `@service(actor="worker")`."""

import importlib
from collections.abc import Callable
from typing import Any

from dynamod.actor import Actor
from dynamod.graph.graph import FRONTEND, ON_DEMAND, PLANNER, PROCESSOR, WORKER
from dynamod.message.errors import UserError

COMPONENTS = {
    FRONTEND: f"{__name__}.frontend:FrontendComponent",
    PLANNER: f"{__name__}.planner:PlannerComponent",
    PROCESSOR: f"{__name__}.processor:ProcessorComponent",
    ON_DEMAND: f"{__name__}.ondemand:OnDemandComponent",
    WORKER: f"{__name__}.worker:WorkerComponent",
}
"""`module:Class` of an actor that takes a ComponentContext, by kind. Imported when it is started."""


def component_class(kind: str) -> Callable[[Any], Actor]:
    """The actor of a kind, or the one that a user names as `module:Class`. Raises UserError when there is none."""
    module, _, name = COMPONENTS.get(kind, kind).partition(":")
    if not name:
        raise UserError(f"no component of kind '{kind}'", f"known kinds: {', '.join(COMPONENTS)}; or module:Class")
    try:
        found: Callable[[Any], Actor] = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(f"component {kind}: {error}", "write the module and the class of an actor") from error
    return found
