"""`depends(Other)`: a service needs a client of another.

The dependency is part of the class, the client belongs to the graph. A class may depend on more than a graph links
("maximal" depends): what is not linked is pruned, and using it then raises an error with the link to write.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint

if TYPE_CHECKING:
    from dynamod.graph.service import Service


class NotLinked(UserError, AttributeError):
    """A dependency was used that the graph does not have. An AttributeError too, so that `hasattr` can ask."""


class Dependency:
    """The record of `depends()`. `on` is a `Service`, an abstract class, or a name resolved when a graph loads."""

    def __init__(self, on: "Service[Any] | type | str") -> None:
        self.on = on
        self.name = ""
        self.owner: type | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.owner = name, owner

    @property
    def wanted(self) -> str:
        """Class name of what is wanted."""
        return self.on.rpartition(":")[2] if isinstance(self.on, str) else self.on.__name__

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """Only reached while nothing is bound: a bound client lies in the instance's own dict and wins."""
        if instance is None:
            return self
        service = type(instance).__name__
        problem = f"{service}.{self.name}: {self.wanted} is not linked in this graph"
        raise NotLinked(problem, f"write {service}.link({self.wanted}) in the graph file")

    def __repr__(self) -> str:
        return f"depends({self.wanted})"


def depends(on: "Service[Any] | type | str") -> Any:
    """Say that a service calls another.

    `worker = depends(VllmWorker)`, then `self.worker.generate(request)` in a method. `on` may be a service, an
    abstract class (any linked subclass then serves), or, where importing would be circular, a string: `"ClassName"`
    or `"module:ClassName"`.
    """
    from dynamod.graph.service import Service

    if not isinstance(on, Service | type | str):
        raise UserError(f"depends({on!r}): expected a service, an abstract class or a name")
    if isinstance(on, type) and not getattr(on, "__abstractmethods__", None):
        raise UserError(f"depends({on.__name__}): {on.__name__} is no service", "decorate the class with @service")
    return Dependency(on)


def dependencies(owner: type) -> dict[str, Dependency]:
    """Dependencies of a class by attribute, base classes first; an override of a subclass replaces or removes one."""
    values = {name: value for base in reversed(owner.__mro__) for name, value in vars(base).items()}
    return {name: value for name, value in values.items() if isinstance(value, Dependency)}


def bind_dependencies(instance: object, clients: Mapping[str, object]) -> None:
    """Give an instance its clients, by attribute name. Names that the class does not declare are errors."""
    known = dependencies(type(instance))
    for name, client in clients.items():
        if name not in known:
            raise UserError(f"{type(instance).__name__} has no dependency '{name}'", known_hint(name, known, "it has"))
        vars(instance)[name] = client
