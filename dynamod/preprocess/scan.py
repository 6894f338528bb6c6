"""What a body consists of: one with too many parts is refused before it is decoded, one with doubled keys after it.

Decoding holds the interpreter's lock for the whole body, so its time must be bounded before it begins. The scan goes
slice by slice; in a thread it lets the event loop run between them.
"""

import json
import re
from typing import Any

import msgspec

from dynamod.message.errors import BadRequest

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

_encode = msgspec.json.Encoder().encode
_RUN = re.compile(rb"\\*")


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
