"""A body becomes a request: JSON, types, ranges, unknown fields. Every refusal names its field.

Decoding holds the interpreter's lock for the whole body, so its time must be bounded before it begins: a body with too
many parts is refused before it is decoded, one with doubled keys after it. The scan goes slice by slice; in a thread it
lets the event loop run between them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from dynamod.message.errors import BadRequest
from dynamod.message.hints import in_words, refusal

T = TypeVar("T", bound=msgspec.Struct)
Leaf = inspect.IntType | inspect.FloatType | inspect.LiteralType

LARGE = 65_536
"""Bytes above which the work on a body is no work for the event loop."""
VALUES = 2_000_000
"""Values that may stand in lists and objects; a model with a longer context gets as many as its context has tokens."""
PARTS = 131_072
"""Objects, lists, keys and strings. Each takes about 0.5 us to decode, a number 0.02 us."""
ESCAPES = 5_000_000
"""Backslashes."""
BETWEEN = 24_000_000
"""Bytes outside of strings."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_RANGE = re.compile(r"^Expected `(?:int|float)` [<>]")
_LENGTH = re.compile(r"^Expected `(str|array)` of length ([<>])= (\d+)")
_TOKEN_KEY = re.compile(r"^Expected `str` matching regex '\^\[0-9\]")
_CUT = "the body is not valid JSON: it ends too early"
_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_NO_WORD = "Invalid enum value"
_UNKNOWN = "Object contains unknown field `"
_NO_INTEGER = re.compile(r"^Expected `[^`]*\bint\b[^`]*`, got `float`")
_MENDED = 64
"""Fields and lists of a body whose numbers become integers."""
_LARGEST = 2.0**53
WRONG_KEYS = 3
"""Keys that an error names."""
_IN_LIST = re.compile(r"\[(\d+|\.\.\.)\]$")
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_RUN = re.compile(rb"\\*")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_type_info = cache(inspect.type_info)


class Parser(Generic[T]):
    """Decodes the bodies of one route."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def parse(self, body: bytes, reject_unknown: bool = False, context_length: int = 0) -> tuple[T, int]:
        """The request and how many fields are unknown. Raises BadRequest, with `param` where one is to blame.

        Every corner of the body is good JSON then, also corners that no struct reads. `context_length`: the longest of
        the models that are served.
        """
        strings = check_size(body, context_length) if len(body) > LARGE else None
        try:
            value = _decode(body)
        except _WRONG as error:
            raise self._broken(body, error) from error
        check_keys(body, value, strings)
        try:
            return self._convert(value), 0
        except msgspec.ValidationError as error:
            if not str(error).startswith(_UNKNOWN):
                raise _refused(error, self._kind, value) from error
        unknown = [name for name in value if name not in self._known]
        if reject_unknown:
            raise BadRequest(f"unknown field: {', '.join(unknown[:8])}", param=unknown[0], code="unknown_parameter")
        for name in unknown:
            del value[name]
        try:
            return self._convert(value), len(unknown)
        except msgspec.ValidationError as error:
            raise _refused(error, self._kind, value) from error

    def _convert(self, value: Any) -> T:
        """The request; numbers like `64.0` are integers, as JSON Schema has them."""
        for _ in range(_MENDED):
            try:
                return msgspec.convert(value, self._kind)
            except msgspec.ValidationError as error:
                if not _made_integers(error, value):
                    raise
        return msgspec.convert(value, self._kind)

    def _broken(self, body: bytes, error: Exception) -> BadRequest:
        if "out of range" in str(error):  # a number that cannot be read, but its field has a name
            try:
                msgspec.json.decode(body, type=self._kind)
            except msgspec.ValidationError as named:
                return _refused(named, self._kind, None)
            except _WRONG:
                pass
        return _not_json(body, error)


def _made_integers(error: msgspec.ValidationError, body: Any) -> bool:
    """Where a number is no integer for its fraction of zero alone: make integers of it and of its neighbours."""
    path, text, _ = refusal(error)
    if not _NO_INTEGER.match(text):
        return False
    holder, steps = body, [name or place for name, place in _STEP.findall(path)]
    for step in steps[:-1]:
        try:
            holder = holder[int(step)] if isinstance(holder, list) else holder[step]
        except (LookupError, TypeError, ValueError):
            return False
    if isinstance(holder, dict):
        places: Sequence[Any] = steps[-1:]
    else:
        places = range(len(holder)) if isinstance(holder, list) else ()
    found = [place for place in places if isinstance(holder, list) or place in holder]
    wrong = [place for place in found if _is_integral(holder[place])]
    for place in wrong:
        holder[place] = int(holder[place])
    return bool(wrong)


def _is_integral(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST


def _refused(error: msgspec.ValidationError, kind: Any, value: Any) -> BadRequest:
    path, text, missing = refusal(error)
    if missing:
        path = f"{path}.{missing}" if path else missing
        return BadRequest(f"`{path}` is required", param=path, code="missing_required_parameter")
    if _RANGE.match(text) and (found := _out_of_range(kind, value, path)):
        return found
    if length := _LENGTH.match(text):
        kind, sign, bound = length.groups()
        unit = "characters" if kind == "str" else "entries"
        problem = "must not be empty" if sign == ">" else f"has more than {bound} {unit}"
        return BadRequest(f"`{path}` {problem}", param=path)
    if text.startswith(_NO_WORD) and (found := _no_such_word(kind, value, path)):
        return found
    if _TOKEN_KEY.match(text):
        return BadRequest(f"`{path}` has {_wrong_keys(value, path)}", param=path)
    text = in_words(text, None)
    if not path:
        return BadRequest(f"the body must be a JSON object with the request's fields: {text}")
    return BadRequest(f"`{path}`: {text}", param=path.split("[...]", 1)[0], code="invalid_type")


def _wrong_keys(body: Any, path: str) -> str:
    """The first keys of an object at the top of the body that are no token ids, in words."""
    keys = body.get(path.partition("[")[0], ()) if isinstance(body, dict) else ()
    wrong = [repr(key[:40]) for key in keys if not re.fullmatch("[0-9]{1,10}", key)]
    if len(wrong) < 2:
        return f"the key {wrong[0]}, which is no token id" if wrong else "a key, which is no token id"
    others = f" and {len(wrong) - WRONG_KEYS} others" if len(wrong) > WRONG_KEYS else ""
    return f"the keys {', '.join(wrong[:WRONG_KEYS])}{others}, which are no token ids"


def _out_of_range(kind: Any, body: Any, path: str) -> BadRequest | None:
    """None: the value is not to be found, because the body is no good JSON."""
    steps = [name or place for name, place in _STEP.findall(path)]
    for allowed, value in _leaves(_type_info(kind), body, steps):
        if isinstance(allowed, inspect.LiteralType) or not isinstance(value, int | float):
            continue
        low, high = allowed.gt if allowed.ge is None else allowed.ge, allowed.le
        if low is None or high is None or (low <= value <= high and value != allowed.gt):
            continue  # all ranges have two bounds
        shown = _shown(value) if abs(value) < 1e18 else "out of range"
        inside = "between {} and {}" if allowed.gt is None else "above {} and at most {}"
        text = f"`{path}` is {shown}; it must be {inside.format(_shown(low), _shown(high))}"
        return BadRequest(text, param=_IN_LIST.sub("", path))  # ids of a list are one value to the client
    return None


def _no_such_word(kind: Any, body: Any, path: str) -> BadRequest | None:
    for allowed, value in _leaves(_type_info(kind), body, [name or place for name, place in _STEP.findall(path)]):
        if isinstance(allowed, inspect.LiteralType) and value not in allowed.values:
            words = [str(word) for word in allowed.values]
            known = f"one of {', '.join(words)}" if len(words) > 1 else repr(words[0])
            return BadRequest(f"`{path}` is {str(value)[:40]!r}; it must be {known}", param=path)
    return None


def _leaves(node: inspect.Type, value: Any, steps: Sequence[str]) -> Iterator[tuple[Leaf, Any]]:
    """The numbers and words that a type allows at a path, each with what the body has there. Step `...`: any key."""
    match node:
        case inspect.UnionType():
            for other in node.types:
                yield from _leaves(other, value, steps)
        case inspect.IntType() | inspect.FloatType() | inspect.LiteralType() if not steps:
            yield node, value
        case inspect.StructType() if steps and isinstance(value, dict):
            for field in node.fields:
                if field.encode_name == steps[0]:
                    yield from _leaves(field.type, value.get(steps[0]), steps[1:])
        case inspect.ListType() if steps and isinstance(value, list):
            for one in value[int(steps[0]) :][:1]:
                yield from _leaves(node.item_type, one, steps[1:])
        case inspect.DictType() if steps and isinstance(value, dict):
            for one in value.values():
                yield from _leaves(node.value_type, one, steps[1:])


def _shown(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _not_json(body: bytes, error: Exception) -> BadRequest:
    problem = f"the body is not valid JSON: {error}"
    if not body.strip():
        problem = "the body is empty; send a JSON object"
    elif isinstance(error, RecursionError):
        problem = "the JSON is nested too deeply"
    elif "truncated" in str(error):
        problem = (
            _CUT if _SURROGATE.search(body) is None else "a string has half of a surrogate pair (\\ud800 to \\udfff)"
        )
    elif isinstance(error, UnicodeDecodeError):
        problem = "the body is not valid UTF-8"
    return BadRequest(problem, code="invalid_json")


def check_size(body: bytes, context_length: int = 0) -> int:
    """The number of strings, keys included. Raises BadRequest for a body that would take too long to decode.

    Broken JSON may pass.

    `context_length`: the longest of the models that are served.
    """
    values = parts = escapes = between = quotes = start = 0
    most = max(VALUES, context_length)
    while start < len(body):
        end = start + LARGE
        if body[end - 1 : end] == b"\\":  # an escape must not be cut in two
            end = _RUN.match(body, end).end() + 1  # type: ignore[union-attr]  # it always matches
        text = body[start:end]
        start = end
        if b"\\" in text:
            escapes += text.count(b"\\")
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = text.split(b'"')
        structure = b"".join(pieces[quotes % 2 :: 2])  # the rest is inside strings
        quotes += len(pieces) - 1
        between += len(structure)
        values += structure.count(b",")
        parts += structure.count(b"{") + structure.count(b"[")
        if values > most:
            raise _too_many(most, "values")
        if parts + quotes // 2 > PARTS:
            raise _too_many(PARTS, "objects, lists, keys and strings")
        if escapes > ESCAPES:
            raise _too_many(ESCAPES, "escaped characters")
        if between > BETWEEN:
            raise _too_many(BETWEEN, "bytes outside of strings")
    return quotes // 2


def _too_many(limit: int, what: str) -> BadRequest:
    return BadRequest(f"the body has more than {limit} {what}", code="request_too_complex")


def check_keys(body: bytes, value: Any, strings: int | None = None) -> None:
    """Raise BadRequest when an object of the body, of which `value` is made, has a key twice: others read the first.

    A key that decoding has dropped shows in the number of strings. `strings`: of the body, when they are counted.
    """
    if strings is None:
        quotes = _encode(value).count(b'"')  # two per string, and those in strings
        if quotes == body.count(b'"') + (_written_quotes(body) if b"\\" in body else 0):
            return
    elif _strings(value) == strings:
        return
    if len(body) <= LARGE:
        json.loads(body, object_pairs_hook=_unique)
    raise BadRequest("an object of the body has a key twice", code="invalid_json")


def _written_quotes(body: bytes) -> int:
    """Quotes in strings that are written by their number, which encoding writes otherwise."""
    return body.replace(b"\\\\", b"").count(b"\\u0022")


def _strings(value: Any) -> int:
    """Strings and keys in a value. A loop of Python's lets other threads run, which encoding a large value does not."""
    found, rest = 0, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            found += len(one)
            rest += one.values()
        elif isinstance(one, list):
            rest += one
        else:
            found += isinstance(one, str)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise BadRequest(
                f"the body has the key `{key[:100]}` twice in one object", param=key[:100], code="invalid_json"
            )
        seen.add(key)
