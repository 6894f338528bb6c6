"""`@endpoint`: a method of a service that others call by name."""

import enum
import inspect
import json
import re
import typing
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, nullcontext
from functools import cached_property
from typing import Any, TypeVar, cast

from dynamod.message.errors import BadRequest, UserError
from dynamod.message.hints import kind

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__dynamo_endpoint__"
_ABSTRACT = "__dynamo_abstract_endpoint__"
_MODELS = ("model_validate", "__struct_fields__", "__dataclass_fields__")  # of pydantic, msgspec, dataclasses


class DynamoTransport(enum.StrEnum):
    """How an endpoint is reached: by messages between services, or as an HTTP route."""

    DEFAULT = "default"
    HTTP = "http"


class EndpointSpec:
    """One endpoint of a class.

    `name`: on the wire, any text without '.', such as `chat/completions`. `function`: the method's name.
    `streams`: it is an async generator; otherwise a coroutine function whose one value is the whole answer.
    `parameter`: name of the request argument, None when the method takes none.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, transports: tuple[DynamoTransport, ...], http_method: str | None
    ) -> None:
        self.function = function.__name__
        self.name = name
        self.transports = transports
        self.http_method = http_method
        self._plain = inspect.unwrap(function)
        self.streams = inspect.isasyncgenfunction(self._plain)
        self.parameter = _request_parameter(self._plain)

    @cached_property
    def request_type(self) -> Any:
        """Type of the request argument; None when it is not annotated. Resolved late, for forward references."""
        try:
            return typing.get_type_hints(self._plain).get(self.parameter or "")
        except (NameError, TypeError):
            # another annotation may be broken (a name only imported for type checking) and this one fine
            raw = self._plain.__annotations__.get(self.parameter or "")
            return None if isinstance(raw, str) else raw

    def parse(self, payload: Any) -> Any:
        """The payload as the method wants it: validated into its pydantic model, msgspec struct or dataclass, if any.

        Raises BadRequest naming the field. Instances of the type and requests of other types pass unchanged.
        """
        wanted = self.request_type
        if not isinstance(wanted, type) or not _is_model(wanted) or isinstance(payload, wanted):
            return payload
        from dynamod.graph.typed import Invalid, converted

        try:
            return converted(wanted, json.loads(payload) if isinstance(payload, str | bytes) else payload)
        except Invalid as error:
            field = ".".join(filter(None, (*error.path, error.missing)))
            raise BadRequest(f"{field or 'request'}: {error}", param=field or None) from None
        except ValueError as error:
            raise BadRequest(f"the request is not JSON: {error}") from None
        except TypeError:
            raise BadRequest(f"request: expected a mapping, got {kind(cast('object', payload))}") from None

    async def stream(self, instance: object, payload: Any = None) -> AsyncGenerator[Any, None]:
        """Call the endpoint and yield its answer, one value for a coroutine function.

        Closing this generator closes the method's own, so that its `finally` frees what it holds.
        """
        method = getattr(instance, self.function)
        answer = method(self.parse(payload)) if self.parameter is not None else method()
        if inspect.isawaitable(answer):
            answer = await answer
        if not hasattr(answer, "__aiter__"):
            yield answer
            return
        async with aclosing(answer) if hasattr(answer, "aclose") else nullcontext():
            async for item in answer:
                yield item


def endpoint(
    name: str | None = None,
    transports: Sequence[DynamoTransport] | None = None,
    http_method: str | None = None,
) -> Callable[[F], F]:
    """Mark a method as an endpoint. The method itself stays as it is and can be called in tests.

    Raises ValueError for `http_method` without the HTTP transport; with it the default method is POST.
    """
    if callable(name):
        raise UserError("@endpoint needs parentheses", "write @endpoint()")
    kinds = tuple(DynamoTransport(one) for one in (transports or (DynamoTransport.DEFAULT,)))
    if http_method is not None and DynamoTransport.HTTP not in kinds:
        raise ValueError("http_method needs the HTTP transport: transports=[DynamoTransport.HTTP]")
    method = (http_method or "POST").upper() if DynamoTransport.HTTP in kinds else None

    def mark(function: F) -> F:
        plain = inspect.unwrap(function)
        if not (inspect.isasyncgenfunction(plain) or inspect.iscoroutinefunction(plain)):
            hint = "write 'async def' and yield (or return) the answer"
            raise UserError(f"endpoint {plain.__qualname__} must be async", hint)
        wire = name or function.__name__
        if not re.fullmatch(r"[^\s.]+", wire):
            raise UserError(f"endpoint name '{wire}' may not hold '.' or spaces")
        setattr(function, _MARK, EndpointSpec(function, wire, kinds, method))
        return function

    return mark


dynamo_endpoint = endpoint


def api(function: Callable[..., Any] | None = None, *, name: str | None = None, http_method: str | None = None) -> Any:
    """An HTTP endpoint only: `@api` or `@api(name=...)`."""
    mark = endpoint(name, [DynamoTransport.HTTP], http_method)
    return mark(function) if function is not None else mark


def abstract_endpoint(function: F) -> F:
    """A method that a concrete service must implement, and as an endpoint."""
    setattr(function, _ABSTRACT, True)
    function.__isabstractmethod__ = True  # type: ignore[attr-defined]  # what abc.abstractmethod sets
    return function


def endpoints(owner: type) -> dict[str, EndpointSpec]:
    """Endpoints of a class by wire name, in the order of definition, base classes first."""
    found: dict[str, EndpointSpec] = {}
    for attribute in dict.fromkeys(name for base in reversed(owner.__mro__) for name in vars(base)):
        spec = getattr(getattr(owner, attribute, None), _MARK, None)
        if not isinstance(spec, EndpointSpec):
            continue
        if spec.name in found:
            raise UserError(f"{owner.__name__} has two endpoints named '{spec.name}'")
        found[spec.name] = spec
    return found


def unmarked_endpoints(owner: type) -> list[str]:
    """Methods that implement an abstract endpoint without being an endpoint: a call would never reach them."""
    wanted = {name for base in owner.__mro__ for name, value in vars(base).items() if hasattr(value, _ABSTRACT)}
    marks = (_MARK, _ABSTRACT)
    return sorted(name for name in wanted if not any(hasattr(getattr(owner, name), mark) for mark in marks))


def _is_model(kind: type) -> bool:
    return any(hasattr(kind, mark) for mark in _MODELS)


def _request_parameter(function: Callable[..., Any]) -> str | None:
    """The first annotated argument, or the first one at all, after `self`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds][1:]
    annotated = [p for p in rest if p.annotation is not inspect.Parameter.empty]
    return (annotated or rest)[0].name if rest else None
