"""The components that ship, by the kind that a service names: `@service(actor="worker")`."""

import importlib
from collections.abc import Callable
from typing import Any, cast

from dynamod.actor import Actor
from dynamod.extension.component import Component
from dynamod.extension.installed import component, declared, enabled
from dynamod.graph.graph import FRONTEND, PROCESSOR, WORKER
from dynamod.message.errors import UserError

COMPONENTS = {
    FRONTEND: f"{__name__}.frontend:FrontendComponent",
    PROCESSOR: f"{__name__}.processor:ProcessorComponent",
    WORKER: f"{__name__}.worker:WorkerComponent",
}
"""`module:Class` of an actor that takes a ComponentContext, by kind. Imported when it is started."""


def component_class(kind: str) -> Callable[[Any], Actor]:
    """The actor of a kind, or the one that a user names as `module:Class`. Raises UserError when there is none."""
    if (added := kind_of(kind)) is not None:
        return cast("Callable[[Any], Actor]", added.actor_class())
    module, _, name = COMPONENTS.get(kind, kind).partition(":")
    try:
        found: Callable[[Any], Actor] = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(f"component {kind}: {error}", "write the module and the class of an actor") from error
    return found


def kind_of(kind: str) -> Component | None:
    """The kind as a feature adds it; None for a kind of the core and for `module:Class`, which is not imported.

    Raises UserError for an unknown kind, and for a kind of a feature that is off.
    """
    if kind in COMPONENTS:
        return None
    added = component(kind)
    if added is None and not kind.partition(":")[2]:
        known = [*COMPONENTS, *(name for feature in enabled() for name in feature.components)]
        raise UserError(f"no component of kind '{kind}'", f"known kinds: {', '.join(known)}; or module:Class")
    return added


def is_ingress(kind: str) -> bool:
    """Whether components of the kind take the requests of clients."""
    added = declared(kind)
    return kind == PROCESSOR or (added is not None and added.ingress)


def starts_workers(kind: str) -> bool:
    """Whether components of the kind start the workers of their graph when a request asks for a model."""
    added = declared(kind)
    return added is not None and added.starts is not None
