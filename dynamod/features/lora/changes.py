"""Adapters that clients have loaded and unloaded: each process keeps the changes that it knows, the newest counts.

There is no one place for them. Every ingress process publishes all that it knows under its own lease, so a change is
known as long as one of them lives, and until then workers that start find it in the registry.
"""

from collections.abc import Callable

import msgspec

from dynamod.discovery.records import decoded
from dynamod.message.discovery import Adapter, Word

ADAPTERS = "v1/adapters/"
"""Adapters that clients have loaded and unloaded, as each ingress process knows them: `v1/adapters/{lease in hex}`."""
UNLOADED = 1000
"""Unloaded adapters of which the last change is kept, the newest ones: another process may know an older change."""


class AdapterChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A client has had an adapter loaded for a model, or unloaded. `at`: when, in seconds of the epoch."""

    model: Word
    adapter: Adapter
    at: float
    loaded: bool = True


class AdapterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """All changes that a process knows: the last one of each adapter."""

    changes: tuple[AdapterChange, ...] = ()


def adapters_key(lease: int) -> str:
    """Key of what an ingress process knows of adapters."""
    return f"{ADAPTERS}{lease:x}"


def _order(change: AdapterChange) -> tuple[float, bool, str, str, float]:
    """Newest last. Two changes of one time are in the same order everywhere."""
    adapter = change.adapter
    return change.at, change.loaded, adapter.digest, adapter.path, adapter.scale


class AdapterChanges:
    """The last change of each adapter, by the model below it and its name."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], AdapterChange] = {}
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each change that was not known."""
        self._on_change.append(watcher)

    def record(self, key: str, value: bytes | None) -> None:
        """What stands at a key of the registry now. One that is gone takes back nothing."""
        if (found := decoded(key, value, AdapterRecord)) is not None:
            self.merge(found)

    def merge(self, record: AdapterRecord) -> None:
        """Take what is newer than what is known."""
        before = dict(self._last)
        for change in record.changes:
            key = change.model, change.adapter.name
            there = self._last.get(key)
            if there is None or _order(there) < _order(change):
                self._last[key] = change
        unloaded = sorted([one for one in self._last.values() if not one.loaded], key=_order)
        for change in unloaded[: max(0, len(unloaded) - UNLOADED)]:
            del self._last[change.model, change.adapter.name]
        if self._last != before:
            for watcher in self._on_change:
                watcher()

    def next(self, model: str, adapter: Adapter, now: float, *, loaded: bool) -> AdapterChange:
        """A change that counts more than what is known. `now`: seconds of the epoch."""
        there = self._last.get((model, adapter.name))
        at = max(now, there.at + 0.001) if there is not None else now  # the clock of another node may be fast
        return AdapterChange(model, adapter, at, loaded)

    def of(self, model: str) -> list[AdapterChange]:
        """Those of a model."""
        return [one for one in self._last.values() if one.model == model]

    def loaded(self) -> list[AdapterChange]:
        """Those of adapters that are to be loaded."""
        return [one for one in self._last.values() if one.loaded]

    def all(self) -> AdapterRecord:
        """Everything that is known."""
        return AdapterRecord(tuple(self._last[key] for key in sorted(self._last)))
