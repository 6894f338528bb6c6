"""The registry of one node, in the daemon's memory: keys with leases, and watchers. Plain and synchronous.

Keys of other nodes lie in a layer below the node's own: an own key hides a foreign one of the same name until it goes.
A mirror gets every change of the node's own leases and keys, so that it can repeat them elsewhere (etcd).
"""

import random as random_module
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from dynamod.actor import Total

from .base import Watcher

if TYPE_CHECKING:
    from .backend import Mirror

LEASES = 1 << 63
"""Lease ids are positive and below this: what etcd takes, which stores them as signed 64 bit numbers."""


class RegistryStatistics(msgspec.Struct, frozen=True):
    """The node's keys, leases and watchers now, revocations so far, and keys of other nodes now."""

    keys: Annotated[int, Meta(description="Keys of this node.")]
    leases: Annotated[int, Meta(description="Leases of this node.")]
    watchers: Annotated[int, Meta(description="Watchers of keys.")]
    revoked: Annotated[Total, Meta(description="Leases that were revoked.")]
    foreign: Annotated[int, Meta(description="Keys of other nodes.")] = 0


class MemoryRegistry:
    """Watchers get every change before the call returns, in the order of the calls."""

    def __init__(self, random: random_module.Random) -> None:
        self._random = random
        self._values: dict[str, tuple[bytes, int]] = {}
        self._foreign: dict[str, bytes] = {}
        self._leases: dict[int, set[str]] = {}
        self._watchers: dict[int, tuple[str, Watcher]] = {}
        self.mirror: Mirror | None = None  # what stands when it is set it reads from `leases` and `own_items`
        self._next_watch = 0
        self._revoked = 0

    # The node's own leases and keys.

    def grant(self, wanted: int = 0) -> int:
        """A new lease: the id asked for when it is legal and free, else a random 63 bit id."""
        lease = wanted
        while not 0 < lease < LEASES or lease in self._leases:
            lease = self._random.getrandbits(63)
        self._leases[lease] = set()
        if self.mirror is not None:
            self.mirror.granted(lease)
        return lease

    def revoke(self, lease: int) -> None:
        """End a lease: all its keys go. Unknown leases pass."""
        keys = self._leases.pop(lease, None)
        if keys is None:
            return
        self._revoked += 1
        gone = sorted(keys)
        hidden = {key: self._values.pop(key)[0] for key in gone}
        if self.mirror is not None:
            self.mirror.revoked(lease, gone)
        for key in gone:
            if key not in self._values:  # else a watcher has put it anew, which was published
                self._uncover(key, hidden[key])

    def put(self, key: str, value: bytes, lease: int) -> None:
        """Store a value. A key that another lease holds is taken over. Raises KeyError for an unknown lease."""
        keys = self._leases[lease]
        before = self._values.get(key)
        if before == (value, lease):
            return
        seen = self._visible(key)
        if before is not None and before[1] != lease:
            self._leases[before[1]].discard(key)
        self._values[key] = (value, lease)
        keys.add(key)
        if self.mirror is not None:
            self.mirror.put(key, value, lease)
        if seen != value:
            self._tell(key, value)

    def delete(self, key: str, lease: int) -> None:
        """Remove a key if `lease` holds it."""
        held = self._values.get(key)
        if held is not None and held[1] == lease:
            self._leases[lease].discard(key)
            del self._values[key]
            if self.mirror is not None:
                self.mirror.deleted(key, lease)
            self._uncover(key, held[0])

    def keys_of(self, lease: int) -> Collection[str]:
        """The keys that a lease holds."""
        return self._leases.get(lease, ())

    def leases(self) -> list[int]:
        """The node's live leases, in the order of their grants."""
        return list(self._leases)

    def own(self, key: str) -> tuple[bytes, int] | None:
        """Value and lease of a key that this node holds."""
        return self._values.get(key)

    def own_items(self) -> list[tuple[str, bytes, int]]:
        """Keys, values and leases of this node, in the order of their first put."""
        return [(key, value, lease) for key, (value, lease) in self._values.items()]

    # Keys of other nodes.

    def put_foreign(self, key: str, value: bytes) -> None:
        """Store what another node holds. Hidden while this node holds the same key."""
        seen = self._visible(key)
        self._foreign[key] = value
        if key not in self._values and seen != value:
            self._tell(key, value)

    def delete_foreign(self, key: str) -> None:
        """Remove what another node held. Unknown keys pass."""
        if self._foreign.pop(key, None) is not None and key not in self._values:
            self._tell(key, None)

    def foreign_items(self) -> list[tuple[str, bytes]]:
        """Keys and values of other nodes, hidden ones too, by key."""
        return sorted(self._foreign.items())

    # What every reader sees.

    def watch(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Tell `watcher` what stands under `prefix` and every change; returns how to stop that."""
        for key, value in self.items(prefix):
            watcher(key, value)
        return self.follow(prefix, watcher)

    def follow(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Tell `watcher` every change under `prefix` from now on; returns how to stop that."""
        self._next_watch += 1
        number = self._next_watch
        self._watchers[number] = (prefix, watcher)

        def stop() -> None:
            self._watchers.pop(number, None)

        return stop

    def items(self, prefix: str = "") -> list[tuple[str, bytes]]:
        """Keys and values under a prefix, of this node and of others, by key."""
        every = self._foreign | {key: value for key, (value, _) in self._values.items()}
        return sorted((key, value) for key, value in every.items() if key.startswith(prefix))

    def statistics(self) -> RegistryStatistics:
        """A snapshot."""
        return RegistryStatistics(
            len(self._values), len(self._leases), len(self._watchers), self._revoked, len(self._foreign)
        )

    def _visible(self, key: str) -> bytes | None:
        held = self._values.get(key)
        return held[0] if held is not None else self._foreign.get(key)

    def _uncover(self, key: str, before: bytes) -> None:
        """An own key has gone: watchers see the foreign one below it, or nothing."""
        now = self._visible(key)
        if now != before:
            self._tell(key, now)

    def _tell(self, key: str, value: bytes | None) -> None:
        for prefix, watcher in list(self._watchers.values()):
            if key.startswith(prefix):
                watcher(key, value)
