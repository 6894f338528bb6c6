"""What a newer release sends and this one does not know: it is skipped, counted, and said once per kind.

A message is a MessagePack array that begins with its kind. Fields at its end that this release does not know are
skipped by the decoder, and counted by `count_fields` for all messages but two: frames that neither begin nor end a
stream, since they come once per token, and structs inside a message that have no kind of their own.
"""

import logging
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, TypeVar, get_args

import msgspec

log = logging.getLogger("dynamod.transport")

T = TypeVar("T")
MAX_SAID = 1000
"""Kinds that are remembered as said."""

_said: set[tuple[str, ...]] = set()
_skipped = 0


def skipped() -> int:
    """Messages and parts of messages that this process has skipped."""
    return _skipped


def skip(what: str, kind: object) -> None:
    """Count a message of an unknown kind."""
    _count("%s of kind %s: this release does not know it", what, f"{kind!r:.80}")


def skip_fields(what: str) -> None:
    """Count a message with unknown fields at its end."""
    _count("the last fields of %s: this release does not know them", what)


def _count(text: str, *arguments: str) -> None:
    global _skipped
    _skipped += 1
    if arguments not in _said and len(_said) < MAX_SAID:
        _said.add(arguments)
        log.warning(f"skipped {text}; the sender is newer", *arguments)


def count_fields(message: bytes | memoryview, sizes: Mapping[bytes, int], what: str) -> list[msgspec.Raw]:
    """Count a message, which has been decoded, when it has fields at its end that this release does not know.

    `sizes`: of the kinds that may stand here. Returns the message's parts, undecoded.
    """
    found = parts(message)
    count_parts(found, sizes, what)
    return found


def count_parts(found: Sequence[msgspec.Raw], sizes: Mapping[bytes, int], what: str) -> None:
    """As `count_fields`, for the parts of a message."""
    if len(found) > sizes.get(bytes(found[0]), len(found)):
        skip_fields(f"{what} of kind {msgspec.msgpack.decode(found[0])!r:.80}")


parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
"""The parts of an array, undecoded. Raises DecodeError, ValidationError for what is no array."""


def sizes(union: UnionType | type) -> dict[bytes, int]:
    """The number of fields, with the kind itself, of each kind of a union of message types. By the encoded kind."""
    types = get_args(union) or (union,)
    return {msgspec.msgpack.encode(one.__struct_config__.tag): len(one.__struct_fields__) + 1 for one in types}


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
