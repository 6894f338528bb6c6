"""A body becomes a request: JSON, types, ranges, unknown fields. Every refusal names its field."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from dynamod.message.errors import BadRequest
from dynamod.message.hints import in_words, refusal

T = TypeVar("T", bound=msgspec.Struct)
Number = inspect.IntType | inspect.FloatType

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_RANGE = re.compile(r"^Expected `(?:int|float)` [<>]")
_LENGTH = re.compile(r"^Expected `(str|array)` of length ([<>])= (\d+)")
_PATTERN = re.compile(r"^Expected `str` matching")
_UNKNOWN = "Object contains unknown field `"
_IN_LIST = re.compile(r"\[(\d+|\.\.\.)\]$")
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_type_info = cache(inspect.type_info)


class Parser(Generic[T]):
    """Decodes the bodies of one route. Strict first: the usual request costs one pass."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def parse(self, body: bytes, reject_unknown: bool = False) -> tuple[T, int]:
        """The request and how many fields nobody knows. Raises BadRequest, with `param` where one is to blame."""
        try:
            return self._decoder.decode(body), 0
        except _WRONG as error:
            if not str(error).startswith(_UNKNOWN):
                raise _refused(error, self._kind, body) from error
        check_json(body)
        fields = self._raw.decode(body)
        unknown = [name for name in fields if name not in self._known]
        if reject_unknown:
            raise BadRequest(f"unknown field: {', '.join(unknown[:8])}", param=unknown[0], code="unknown_parameter")
        for name in unknown:
            del fields[name]
        try:
            return self._decoder.decode(msgspec.json.encode(fields)), len(unknown)
        except _WRONG as error:
            raise _refused(error, self._kind, body) from error


def check_json(body: bytes) -> Any:
    """The whole body. Raises BadRequest unless every corner of it is good JSON, also those that no struct reads.

    For bodies that travel on as they are (text engines) and for those with unknown fields.
    """
    try:
        return msgspec.json.decode(body)
    except _WRONG as error:
        raise _refused(error, dict, body) from error


def _refused(error: Exception, kind: Any, body: bytes) -> BadRequest:
    if not isinstance(error, msgspec.ValidationError):
        return _not_json(body, error)
    path, text, missing = refusal(error)
    if missing:
        path = f"{path}.{missing}" if path else missing
        return BadRequest(f"`{path}` is required", param=path, code="missing_required_parameter")
    if _RANGE.match(text) and (found := _out_of_range(kind, body, path)):
        return found
    if length := _LENGTH.match(text):
        return _wrong_length(path, *length.groups())
    if _PATTERN.match(text):
        return BadRequest(f"`{path}` has a key that is no token id", param=path)
    text = in_words(text, None)
    if not path:
        return BadRequest(f"the body must be a JSON object with the request's fields: {text}")
    return BadRequest(f"`{path}`: {text}", param=path.split("[...]", 1)[0], code="invalid_type")


def _out_of_range(kind: Any, body: bytes, path: str) -> BadRequest | None:
    """None: the value is not to be found, because its key is in the body twice."""
    steps = [name or place for name, place in _STEP.findall(path)]
    for allowed, value in _numbers(_type_info(kind), check_json(body), steps):
        if _outside(allowed, value):
            shown = _shown(value) if abs(value) < 1e18 else "out of range"
            text = f"`{path}` is {shown}; it must be {_bounds(allowed)}"
            return BadRequest(text, param=_IN_LIST.sub("", path))  # ids of a list are one value to the client
    return None


def _outside(allowed: Number, value: float) -> bool:
    """All ranges have two bounds."""
    low = allowed.gt if allowed.ge is None else allowed.ge
    return low is not None and allowed.le is not None and (not low <= value <= allowed.le or value == allowed.gt)


def _numbers(node: inspect.Type, value: Any, steps: Sequence[str]) -> Iterator[tuple[Number, float]]:
    """The numbers that a type allows at a path, each with what the body has there. Step `...`: at any key."""
    match node:
        case inspect.UnionType():
            for other in node.types:
                yield from _numbers(other, value, steps)
        case inspect.IntType() | inspect.FloatType() if not steps and isinstance(value, int | float):
            yield node, value
        case inspect.StructType() if steps and isinstance(value, dict):
            for field in node.fields:
                if field.encode_name == steps[0]:
                    yield from _numbers(field.type, value.get(steps[0]), steps[1:])
        case inspect.ListType() if steps and isinstance(value, list):
            for one in value[int(steps[0]) :][:1]:
                yield from _numbers(node.item_type, one, steps[1:])
        case inspect.DictType() if steps and isinstance(value, dict):
            for one in value.values():
                yield from _numbers(node.value_type, one, steps[1:])


def _bounds(allowed: Number) -> str:
    if allowed.ge is None:
        return f"above {_shown(allowed.gt)} and at most {_shown(allowed.le)}"
    return f"between {_shown(allowed.ge)} and {_shown(allowed.le)}"


def _shown(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wrong_length(path: str, kind: str, sign: str, bound: str) -> BadRequest:
    if sign == ">":
        return BadRequest(f"`{path}` must not be empty", param=path)
    return BadRequest(f"`{path}` has more than {bound} {'characters' if kind == 'str' else 'entries'}", param=path)


def _not_json(body: bytes, error: Exception) -> BadRequest:
    if not body.strip():
        return BadRequest("the body is empty; send a JSON object", code="invalid_json")
    if isinstance(error, RecursionError):
        return BadRequest("the JSON is nested too deeply", code="invalid_json")
    if isinstance(error, UnicodeDecodeError):
        return BadRequest("the body is not valid UTF-8", code="invalid_json")
    return BadRequest(f"the body is not valid JSON: {error}", code="invalid_json")
