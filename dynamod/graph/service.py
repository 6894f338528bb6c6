"""`@service`: a class that a graph can start, with its options. The one module that a graph file imports.

    @service(dynamo={"namespace": "dynamo"}, resources={"gpu": 1}, workers=2)
    class Worker:
        @endpoint()
        async def generate(self, request: Request):
            yield ...

The decorated name is a `Service`, not the class: `Worker.inner` is the class, `Worker(...)` makes an instance (for
tests), `Worker.link(Other)` adds an edge to the graph being loaded, and attributes of the class shine through.
"""

import abc
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast, overload

from dynamod.extension.installed import component
from dynamod.graph import endpoint as endpoints
from dynamod.graph import options as checks
from dynamod.graph.depends import Dependency, NotLinked, bind_dependencies, dependencies, depends
from dynamod.graph.endpoint import DynamoTransport, abstract_endpoint, api, dynamo_endpoint, endpoint
from dynamod.graph.hooks import async_on_start, hooks, liveness, on_shutdown, readiness
from dynamod.graph.options import Placement
from dynamod.message.errors import UserError
from dynamod.message.hints import near

__all__ = ["AbstractService", "Dependency", "DynamoTransport", "NotLinked", "Service", "abstract_endpoint", "api"]
__all__ += ["async_on_start", "bind_dependencies", "depends", "dynamo_endpoint", "endpoint", "hooks", "liveness"]
__all__ += ["on_shutdown", "readiness", "service"]

T = TypeVar("T")
S = TypeVar("S", bound="Service[Any]")
_KNOWN = ("dynamo", "resources", "workers", "image", "envs", "app", "system_app", "config", "placement", "actor")


Links = list[tuple["Service[Any]", "Service[Any]"]]
"""Edges in the order in which they were made, each once."""

_links: ContextVar[Links | None] = ContextVar("dynamod_links", default=None)


class AbstractService(abc.ABC):  # noqa: B024  # the methods are those of its subclasses
    """Base of an interface: `depends(Interface)` is served by whichever concrete subclass a graph links."""


class Service(Generic[T]):
    """A decorated class. Built by `@service`, see there; raises UserError for options that make no sense."""

    def __init__(
        self,
        inner: type[T],
        *,
        dynamo: object = None,
        resources: object = None,
        workers: int = 1,
        image: str | None = None,
        envs: object = None,
        app: Any = None,
        system_app: Any = None,
        config: type | None = None,
        placement: Placement | None = None,
        actor: str = "",
        **options: Any,
    ) -> None:
        functools.update_wrapper(self, inner, updated=())
        self.inner = inner
        self.name = inner.__name__
        with _errors_of(self.name):
            for key in options:
                if hint := near(key, _KNOWN):  # the component reads other options; a misspelled one is an error
                    raise UserError(f"unknown option '{key}'", hint.strip())
            self.dynamo = checks.check_dynamo(dynamo)
            self.resources = checks.check_resources(resources)
            self.workers = checks.check_workers(workers)
            self.envs = checks.check_envs(envs)
            default = checks.default_placement(self.resources, self.dynamo.component_type)
            self.placement: Placement = checks.check_placement(placement) or default
            self.endpoints = endpoints.endpoints(inner)
            if missing := endpoints.unmarked_endpoints(inner):
                raise UserError(f"{', '.join(missing)} must be an endpoint", "put @endpoint() on it")
            self.config_model = _config_model(inner, config) or _model_of_kind(actor)
        self.dependencies = dependencies(inner)
        self.image = image or os.environ.get("DYNAMO_IMAGE")
        self.actor = actor
        self.app, self.system_app, self.options = app, system_app, options

    @property
    def namespace(self) -> str:
        """First part of the address of its endpoints."""
        return self.dynamo.namespace

    @property
    def component(self) -> str:
        """Second part of the address: the class name unless `dynamo={"name": ...}` names it."""
        return self.dynamo.name or self.name

    @property
    def abstract(self) -> bool:
        """It has abstract methods left and cannot be served itself."""
        return bool(getattr(self.inner, "__abstractmethods__", None))

    def dynamo_address(self) -> tuple[str, str]:
        """`(namespace, component)`."""
        return self.namespace, self.component

    def link(self, other: S) -> S:
        """Add the edge self -> other to the graph being loaded; returns `other`, so that chains read left to right.

        Outside a load it has no effect: a child process imports the graph file for its classes alone.
        """
        if not isinstance(other, Service):
            raise UserError(f"{self.name}.link({other!r}): expected a service", "decorate the class with @service")
        links = _links.get()
        if links is not None and not any(a is self and b is other for a, b in links):
            links.append((self, other))
        return other

    def create(self, clients: Mapping[str, object] | None = None, config: Mapping[str, Any] | None = None) -> T:
        """An instance as a host makes it.

        Clients of its dependencies and, for a typed service, `self.config` are there before `__init__` runs.
        """
        instance = self.inner.__new__(self.inner)
        bind_dependencies(instance, clients or {})
        if self.config_model is not None:
            vars(instance)["config"] = self.parse_config(config or {})
        cast("Any", instance).__init__()
        return instance

    def parse_config(self, config: Mapping[str, Any]) -> Any:
        """Its section as its pydantic model, or as a plain dict when it declares none. Raises UserError."""
        if self.config_model is None:
            return dict(config)
        from dynamod.graph.typed import validate

        return validate(self.config_model, config, self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        """An instance as a test makes it."""
        return self.inner(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "inner" not in vars(self):  # copying looks for names before we are ready
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        return (self.inner,)  # `class Mine(Worker)` extends the class

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self.inner)

    def __repr__(self) -> str:
        return f"<service {self.namespace}.{self.component} ({self.inner.__module__}:{self.inner.__qualname__})>"


@overload
def service(inner: type[T], /) -> Service[T]: ...
@overload
def service(
    inner: None = None,
    /,
    *,
    dynamo: Mapping[str, Any] | object | None = None,
    resources: Mapping[str, Any] | object | None = None,
    workers: int = 1,
    image: str | None = None,
    envs: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
    app: Any = None,
    system_app: Any = None,
    config: type | None = None,
    placement: Placement | None = None,
    **kwargs: Any,
) -> Callable[[type[T]], Service[T]]: ...
def service(inner: type[Any] | None = None, /, **kwargs: Any) -> Any:
    """Make a class a service, bare or with options.

    `dynamo`: `{enabled, name, namespace, custom_lease, component_type}`. `resources`: `{cpu, memory, gpu}`.
    `workers`: processes (or copies in the ingress process). `envs`: environment of its process. `config`: a pydantic
    model that types its YAML section (a nested class `Config` does the same). `placement`: "own" process or the shared
    "ingress" one; by default own with a GPU or an engine's component type, else ingress. Other options are kept in
    `Service.options`. Raises UserError.
    """
    if inner is not None:
        return Service(inner)
    return lambda cls: Service(cls, **kwargs)


@contextmanager
def collecting() -> Iterator[Links]:
    """Links made inside the block go to the list that it yields, and nowhere else.

    They belong to the load in progress, not to the classes: the same component classes serve many graphs, and two
    graphs loaded by one process must not see each other's links.
    """
    links: Links = []
    token = _links.set(links)
    try:
        yield links
    finally:
        _links.reset(token)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Put the service's name in front of a UserError of the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"service {name}: {error}", error.hint) from None


def _config_model(inner: type, given: type | None) -> type | None:
    """The model of the section. A nested `Config` that is no pydantic model is the class's own business."""
    nested = getattr(inner, "Config", None)
    if given is None:
        return nested if isinstance(nested, type) and hasattr(nested, "model_validate") else None
    if not hasattr(given, "model_validate") and not hasattr(given, "__struct_fields__"):
        raise UserError(f"config: {given!r} is no pydantic model")
    return given


def _model_of_kind(kind: str) -> type | None:
    """The model that a feature gives to sections of services of a kind. None while the feature is off.

    Preflight names the feature, when the graph has the service: the module of the service may be imported for others.
    """
    try:
        added = component(kind) if kind else None
    except UserError:
        return None
    return added.settings() if added is not None else None
