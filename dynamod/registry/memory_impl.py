"""The registry of one node, in the daemon's memory: keys with leases, and watchers. Plain and synchronous."""

import random as random_module
from collections.abc import Callable

import msgspec

from .base import Watcher


class RegistryStatistics(msgspec.Struct, frozen=True):
    """Keys, leases and watchers now, and revocations so far."""

    keys: int
    leases: int
    watchers: int
    revoked: int


class MemoryRegistry:
    """Every change is told to watchers before the call returns, in the order of the calls."""

    def __init__(self, random: random_module.Random) -> None:
        self._random = random
        self._values: dict[str, tuple[bytes, int]] = {}
        self._leases: dict[int, set[str]] = {}
        self._watchers: dict[int, tuple[str, Watcher]] = {}
        self._next_watch = 0
        self._revoked = 0

    def grant(self, wanted: int = 0) -> int:
        """A new lease: the id asked for when it is free, else a random 63 bit id."""
        lease = wanted
        while lease <= 0 or lease in self._leases:
            lease = self._random.getrandbits(63)
        self._leases[lease] = set()
        return lease

    def revoke(self, lease: int) -> None:
        """End a lease: all its keys go. Unknown leases pass."""
        keys = self._leases.pop(lease, None)
        if keys is None:
            return
        self._revoked += 1
        for key in sorted(keys):
            self._remove(key)

    def put(self, key: str, value: bytes, lease: int) -> None:
        """Store a value. A key that another lease holds is taken over. Raises KeyError for an unknown lease."""
        keys = self._leases[lease]
        before = self._values.get(key)
        if before is not None and before[1] != lease:
            self._leases[before[1]].discard(key)
        self._values[key] = (value, lease)
        keys.add(key)
        if before is None or before[0] != value:
            self._tell(key, value)

    def delete(self, key: str, lease: int) -> None:
        """Remove a key if `lease` holds it."""
        held = self._values.get(key)
        if held is not None and held[1] == lease:
            self._leases[lease].discard(key)
            self._remove(key)

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
        """Keys and values under a prefix, by key."""
        return [(key, self._values[key][0]) for key in sorted(self._values) if key.startswith(prefix)]

    def statistics(self) -> RegistryStatistics:
        """A snapshot."""
        return RegistryStatistics(len(self._values), len(self._leases), len(self._watchers), self._revoked)

    def _remove(self, key: str) -> None:
        del self._values[key]
        self._tell(key, None)

    def _tell(self, key: str, value: bytes | None) -> None:
        for prefix, watcher in list(self._watchers.values()):
            if key.startswith(prefix):
                watcher(key, value)
