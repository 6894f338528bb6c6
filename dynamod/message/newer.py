"""What a newer release sends and this one does not know: it is skipped, counted, and said once per kind.

A message is a MessagePack array that begins with its kind. Fields at its end that this release does not know are
skipped by the decoder and not counted.
"""

import logging
from collections.abc import Sequence
from types import UnionType
from typing import Any, TypeVar, get_args

import msgspec

log = logging.getLogger("dynamod.transport")

T = TypeVar("T")
MAX_SAID = 1000
"""Kinds that are remembered as said."""

_said: set[tuple[str, str]] = set()
_skipped = 0


def skipped() -> int:
    """Messages and parts of messages that this process has skipped."""
    return _skipped


def skip(what: str, kind: object) -> None:
    """Count a message of an unknown kind."""
    global _skipped
    _skipped += 1
    said = (what, f"{kind!r:.80}")
    if said not in _said and len(_said) < MAX_SAID:
        _said.add(said)
        log.warning("skipped %s of kind %s: this release does not know it; the sender is newer", *said)


def kinds(union: UnionType | type) -> frozenset[object]:
    """The kinds of a union of message types."""
    return frozenset(one.__struct_config__.tag for one in get_args(union) or (union,))


def untyped(payload: bytes | memoryview) -> list[Any]:
    """A message without its types; empty when it is no array. Raises DecodeError for damaged bytes."""
    value = msgspec.msgpack.decode(payload)
    return value if isinstance(value, list) else []


def known(parts: Sequence[Any], union: Any, what: str) -> tuple[Any, ...]:
    """Those parts that this release knows, as their types; raises ValidationError for what is damaged.

    A part is unknown when it is an array whose kind has the type of the other kinds and is none of them.
    """
    names, found = kinds(union), []
    sort = type(next(iter(names)))
    for part in parts:
        if isinstance(part, list) and part and type(part[0]) is sort and part[0] not in names:
            skip(what, part[0])
        else:
            found.append(msgspec.convert(part, union))
    return tuple(found)
