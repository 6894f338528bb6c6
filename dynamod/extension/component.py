"""A kind of component that a feature adds to graphs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Component:
    """What runs a service that names the kind: `@service(actor=kind)`.

    `actor_class` gives the class, an `actor.Actor` that takes a `runtime.context.ComponentContext`. `settings` gives
    the model of the service's section in a config file, for a service without a model of its own. `check(settings,
    spec, graph)` looks at the section, the `graph.graph.ServiceSpec` and its `Graph` before a process starts; it raises
    UserError.

    `ingress`: the component takes the requests of clients; its settings extend `ingress.settings.ProcessorSettings`.
    `starts(settings)`: the components whose workers it starts when a request asks for their models, and how many of
    these components have workers at once, None for all. Such a component has one process.
    """

    actor_class: Callable[[], Any]
    settings: Callable[[], type]
    check: Callable[[Any, Any, Any], None] | None = None
    ingress: bool = False
    starts: Callable[[Any], tuple[Collection[str], int | None]] | None = None
