"""Values of the registry. Other systems, newer versions and mistakes put values there that must stop nobody."""

import logging
from typing import Any, TypeVar

import msgspec

from dynamod.actor import Total

from .base import Watcher

T = TypeVar("T")

log = logging.getLogger("dynamod.registry")

_said: dict[str, bytes] = {}
"""By key: the value that the log has a line about."""
_ignored = 0
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

REMEMBERED = 1000


class RecordStatistics(msgspec.Struct, frozen=True):
    """Values of the registry that this process could not read and has skipped."""

    ignored: Total


def statistics() -> RecordStatistics:
    """Counts of this process."""
    return RecordStatistics(_ignored)


def decoded(key: str, value: bytes | None, kind: type[T]) -> T | None:
    """The record in a value; None for one that is not of this kind, which is counted, and said once."""
    global _ignored
    if value is None:
        return None
    try:
        decoder = _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))
        found: T = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _ignored += 1
        if _said.get(key) != value:
            log.warning("ignored what stands at %.300r: it is no %s (%.300s)", key, kind.__name__, error)
            if len(_said) >= REMEMBERED:
                _said.clear()
            _said[key] = value
        return None
    return found


def keep(table: dict[str, T], kind: type[T]) -> Watcher:
    """A watcher that keeps what stands under a prefix, by key."""

    def watcher(key: str, value: bytes | None) -> None:
        record = decoded(key, value, kind)
        if record is None:
            table.pop(key, None)
        else:
            table[key] = record

    return watcher
