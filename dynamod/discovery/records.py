"""Values of the registry. Other systems, newer versions and mistakes put values there, which must stop no process."""

import functools
import logging
import sys
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.protocol import OLDEST_NODE, PROTOCOL, works_with
from dynamod.observe.bounded import bounded

from .base import Watcher

T = TypeVar("T")

log = logging.getLogger("dynamod.registry")

_said: dict[str, bytes] = {}
"""By key: the value that the log has a line about."""
_ignored = _unknown_fields = 0
_said_fields: set[tuple[str, str]] = set()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

_looked_at: dict[str, int] = {}
"""By key: the hash of the value whose unknown fields were counted."""
REMEMBERED = 1000
REMEMBERED_VALUES = 10_000


bounded(sys.modules[__name__], "registry values read", REMEMBERED_VALUES, lambda _: len(_looked_at), "keys")
bounded(sys.modules[__name__], "registry values ignored", REMEMBERED, lambda _: len(_said), "keys")


class RecordStatistics(msgspec.Struct, frozen=True):
    """Values of the registry that this process could not read and has skipped.

    `unknown_fields`: fields and sections of other values, which only a newer release knows.
    """

    ignored: Annotated[Total, Meta(description="Values of the registry that could not be read and were skipped.")]
    unknown_fields: Annotated[
        Total, Meta(description="Fields and sections of values that only a newer release knows.")
    ] = 0


def statistics() -> RecordStatistics:
    """Counts of this process."""
    return RecordStatistics(_ignored, _unknown_fields)


def decoded(key: str, value: bytes | None, kind: type[T], *, any_release: bool = False) -> T | None:
    """The record in a value; None for one that is not of this kind, which is counted, and said once.

    `any_release`: also a record of a node whose protocol this release does not work with.
    """
    if value is None:
        return None
    try:
        decoder = _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))
        found: T = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _ignore(key, value, f"it is no {kind.__name__} ({error!s:.300})")
        return None
    if isinstance(found, Instance | ModelCard) and not any_release and not works_with(found.protocol, found.since):
        other = f"its node speaks protocol {found.protocol} and works with {found.since} or later"
        _ignore(key, value, f"{other}, this one speaks {PROTOCOL} and works with {OLDEST_NODE} or later")
        return None
    if _looked_at.get(key) != (digest := hash(value)):  # a value is read by several, and again and again
        if len(_looked_at) >= REMEMBERED_VALUES:
            _looked_at.clear()
        _looked_at[key] = digest
        _count_unknown(value, kind)
    return found


def _ignore(key: str, value: bytes, why: str) -> None:
    global _ignored
    _ignored += 1
    if _said.get(key) != value:
        log.warning("ignored what stands at %.300r: %s", key, why)
        if len(_said) >= REMEMBERED:
            _said.clear()
        _said[key] = value


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct] | None]:
    """Names of fields, each with its struct where it is a section of its own."""
    found = {}
    for field in msgspec.structs.fields(kind):
        section = field.type if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct) else None
        found[field.encode_name] = section
    return found


def _count_unknown(value: bytes, kind: type[Any]) -> None:
    """Count the fields and sections that a newer release has; the decoder has skipped them."""
    global _unknown_fields
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return
    for name in _unknown(msgspec.json.decode(value), kind):
        _unknown_fields += 1
        said = (kind.__name__, name)
        if said not in _said_fields and len(_said_fields) < REMEMBERED:
            _said_fields.add(said)
            log.warning("skipped the field %.100r of a %s: this release does not know it", name, kind.__name__)


def _unknown(value: Any, kind: type[msgspec.Struct]) -> Iterator[str]:
    fields = _fields(kind)
    for name, inner in value.items() if isinstance(value, dict) else ():
        if name not in fields:
            yield name
        elif (section := fields[name]) is not None:
            yield from (f"{name}.{one}" for one in _unknown(inner, section))


def keep(table: dict[str, T], kind: type[T]) -> Watcher:
    """A watcher that keeps what stands under a prefix, by key."""

    def watcher(key: str, value: bytes | None) -> None:
        record = decoded(key, value, kind)
        if record is None:
            table.pop(key, None)
        else:
            table[key] = record

    return watcher
