"""What the node has, what etcd has, and what must be said to make them agree. Synchronous; knows no network.

For each key there is what this node wants (the own layer of MemoryRegistry) and what stands in etcd (`_remote`: the
last snapshot and every event since). A local change makes a key dirty; the bridge takes dirty keys, puts or deletes
them, and reports the outcome. An event whose result is not what the node wants makes an own key dirty again; foreign
keys go to the registry's foreign layer. So the order of the changes of one key never gets lost, and an echo of what
we did ourselves is nothing but an event that changes nothing.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from dynamod.discovery.keys import SHARED
from dynamod.discovery.memory import MemoryRegistry

from .client import Change, Item

log = logging.getLogger("dynamod.registry")

LeaseState = Literal["wanted", "held", "taken"]

BATCH_KEYS = 100  # etcd's default limit of operations in a txn is 128
BATCH_BYTES = 512 * 1024  # and of a request 1.5 MiB


class Batch(NamedTuple):
    """Keys to put under one lease in one txn."""

    lease: int
    items: list[tuple[str, bytes]]


class Leases:
    """The leases of the node. `states`: of the wanted leases. `asked`: granted by us, or perhaps: the answer
    was lost. `ending`: leases that we end: revision of the end, 0 while it is still to be asked for.
    """

    def __init__(self) -> None:
        self.states: dict[int, LeaseState] = {}
        self.asked: set[int] = set()
        self.ending: dict[int, int] = {}

    def ends(self) -> list[int]:
        """Leases to revoke."""
        return [lease for lease, revision in self.ending.items() if not revision]

    def wanted(self, *, taken: bool = False) -> list[int]:
        """Leases to grant; `taken`: also those whose id was not free when last asked."""
        states = ("wanted", "taken") if taken else ("wanted",)
        return [lease for lease, state in self.states.items() if state in states]

    def held(self) -> list[int]:
        """Leases to keep alive."""
        return [lease for lease, state in self.states.items() if state == "held"]

    def forget_ended(self, until: int | None = None) -> set[int]:
        """Make leases whose last echo has come strangers again, since another node may use the id; returns them."""
        last = [lease for lease, end in self.ending.items() if end and (until is None or end <= until)]
        for lease in last:
            del self.ending[lease]
            self.asked.discard(lease)
        return set(last)


class EtcdMirror:
    """The registry calls the first four methods, in the order of its changes and before any watcher; none raises.

    `wake` is set when there is something to say; `saying` is held while it is said.
    """

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self._remote: dict[str, Item] = {}
        self._gone: dict[str, int] = {}  # keys that we deleted, at which revision: older echoes are still to come
        self._dirty: dict[str, None] = {}
        self._flying: set[str] = set()  # taken, outcome not known yet
        self.leases = Leases()
        self._missing: set[str] = set()  # foreign keys that the last snapshot did not have, in their time of grace
        self._snapshot = 0
        self._oversized: set[str] = set()
        self._contested: set[str] = set()
        self._closed = False
        self.revision = 0
        self.wake, self.saying = asyncio.Event(), asyncio.Lock()
        self.heartbeat = asyncio.Event()  # a lease was adopted, whose time may be short
        for lease in registry.leases():
            self.granted(lease)
        for key, _, _ in registry.own_items():
            self._soil(key)
        registry.mirror = self

    # Changes of the registry.

    def granted(self, lease: int) -> None:
        """A lease of the node began. One whose end has not been said yet simply continues."""
        self.leases.states[lease] = "held" if self.leases.ending.pop(lease, None) == 0 else "wanted"
        self.wake.set()

    def revoked(self, lease: int, keys: list[str]) -> None:
        """A lease ended, and with it its keys, sorted; they are not reported one by one."""
        self.leases.states.pop(lease, None)
        if lease in self.leases.asked:
            self.leases.ending[lease] = 0
        for key in keys:
            self._soil(key)

    def put(self, key: str, value: bytes, lease: int) -> None:
        """A key got a value, or another lease."""
        self._oversized.discard(key)
        self._soil(key)

    def deleted(self, key: str, lease: int) -> None:
        """A key was removed from a lease that continues."""
        self._soil(key)

    def again(self) -> None:
        """Put all keys of this node again: their values get other signatures."""
        for key, _, _ in self._registry.own_items():
            self._soil(key)

    # What the bridge says, and what comes of it.

    def ended(self, lease: int, revision: int) -> None:
        """A lease is revoked. When the node wants it again meanwhile, it has to be granted anew."""
        if lease in self.leases.states:
            self.lost(lease)
        else:
            self.leases.ending[lease] = revision
            self._forget_ended(self.revision)

    def granted_at_last(self, lease: int, *, certain: bool = True) -> None:
        """Etcd has granted a lease, or (not `certain`) may have."""
        self.leases.asked.add(lease)
        if lease not in self.leases.states:  # revoked while we asked
            self.leases.ending[lease] = 0
            self.wake.set()
        elif certain:
            self.leases.states[lease] = "held"
            self._settle_leases([lease])

    def taken(self, lease: int) -> bool:
        """The id exists in etcd. Adopt the lease (True) if it is this node's own from before, else leave it alone.

        It is ours when an answer to us got lost, or when all keys on it are this node's, with the same values: then
        the daemon before this one was killed and its processes continued.
        """
        if lease not in self.leases.states:
            return True
        keys = {key: item for key, item in self._remote.items() if item.lease == lease}
        same = bool(keys) and all(self._registry.own(key) == (item.value, lease) for key, item in keys.items())
        if not same and lease not in self.leases.asked:
            self.leases.states[lease] = "taken"
            return False
        self.leases.asked.add(lease)
        self.leases.states[lease] = "held"
        self.heartbeat.set()
        self._settle_leases([lease])
        return True

    def lost(self, lease: int) -> None:
        """Etcd has no such lease (any more): it is wanted anew, with all its keys."""
        if lease in self.leases.states:
            self.leases.states[lease] = "wanted"
            for key, _, holder in self._registry.own_items():
                if holder == lease:
                    self._soil(key)
            self.wake.set()

    def take(self) -> tuple[list[Batch], list[tuple[str, int]]]:
        """What to put, and keys to delete with the lease they hang on. Report the outcome of each."""
        batches: list[Batch] = []
        deletions: list[tuple[str, int]] = []
        latest: dict[int, tuple[Batch, int]] = {}
        for key in list(self._dirty):
            own = self._registry.own(key)
            if own is None:
                del self._dirty[key]
                have = self._remote.get(key)
                if have is not None and self.leases.states.get(have.lease) == "held":
                    self._flying.add(key)
                    deletions.append((key, have.lease))
                else:
                    self._settle(key)
            elif self.leases.states.get(own[1]) == "held":
                value, lease = own
                del self._dirty[key]
                self._flying.add(key)
                batch, size = latest.get(lease, (None, 0))
                if batch is None or len(batch.items) >= BATCH_KEYS or size + len(value) > BATCH_BYTES:
                    batch, size = Batch(lease, []), 0
                    batches.append(batch)
                batch.items.append((key, value))
                latest[lease] = batch, size + len(value)
        return batches, deletions

    def done(self, batch: Batch, revision: int) -> None:
        """A batch stands in etcd since `revision`."""
        for key, value in batch.items:
            self._flying.discard(key)
            if revision > self._known(key):
                self._remote[key] = Item(value, batch.lease, revision)
                self._gone.pop(key, None)
            self._settle(key)

    def deleted_at_last(self, key: str, lease: int, revision: int | None) -> None:
        """A key is deleted; `revision` None: it hung on another lease, whose event is under way or has come."""
        self._flying.discard(key)
        if revision is None:
            if key in self._remote and self._remote[key].lease == lease:
                del self._remote[key]
        elif revision > self._known(key):
            self._remote.pop(key, None)
            self._gone[key] = revision
        self._settle(key)

    def failed(self, keys: Iterable[str]) -> None:
        """It is unknown whether these keys were changed: put them again."""
        for key in keys:
            self._flying.discard(key)
            self._soil(key)

    def oversized(self, key: str) -> None:
        """Etcd will never take this value: do not try until it changes."""
        self._flying.discard(key)
        self._oversized.add(key)

    # Events of etcd.

    def resync(self, items: Mapping[str, Item], revision: int) -> int:
        """Compare a snapshot with what we knew; returns the revision from which changes are to be followed.

        Foreign keys that are missing stay until `expire`: after a loss of data their owners have to come back too. If
        history continues from our revision, it is replayed, and keys that were really deleted go at once.
        """
        before, self.revision = self.revision, revision
        self._snapshot = revision
        self._remote = dict(items)
        self._gone.clear()
        self._contested.clear()
        for key in self._flying:
            self._dirty[key] = None
        self._flying.clear()
        self.leases.forget_ended()
        foreign = [key for key, _ in self._registry.foreign_items() if key.startswith(SHARED)]
        self._missing = {key for key in foreign if key not in items}
        for key in sorted(self._remote):
            self._settle(key)
        for key, _, _ in self._registry.own_items():
            self._settle(key)
        self.wake.set()
        return before + 1 if self._missing and 0 < before <= revision else revision + 1

    def apply(self, changes: Iterable[Change]) -> None:
        """Take events of the watch, in their order."""
        for key, item, revision in changes:
            if revision <= self._snapshot:  # replayed: the snapshot knows better, but not what was deleted
                if item is None and key in self._missing:
                    self._missing.discard(key)
                    self._registry.delete_foreign(key)
                continue
            self.revision = max(self.revision, revision)
            self._forget_ended(revision - 1)
            if revision <= self._known(key):
                continue
            self._missing.discard(key)
            if item is None:
                self._remote.pop(key, None)
            else:
                self._remote[key] = item
            self._settle(key)
        self._gone = {key: revision for key, revision in self._gone.items() if revision > self.revision}
        self._forget_ended(self.revision)

    def compacted(self) -> int:
        """The history asked for is not kept: what is missing waits for `expire`. Returns where to follow from."""
        return self._snapshot + 1

    def expire(self) -> None:
        """The time of grace is over."""
        for key in sorted(self._missing):
            self._registry.delete_foreign(key)
        self._missing.clear()

    def close(self) -> None:
        """Hear and say nothing any more."""
        self._closed = True
        self._registry.mirror = None
        self._dirty.clear()

    def statistics(self) -> dict[str, int]:
        """Keys in etcd as far as known, keys still to be said, keys in their time of grace, keys held by two nodes."""
        return {
            "remote": len(self._remote),
            "pending": len(self._dirty) + len(self._flying),
            "missing": len(self._missing),
            "contested": len(self._contested),
        }

    def _settle(self, key: str) -> None:
        """Look at one key: give the registry what others hold, and note what is left to send."""
        if self._closed:
            return
        have = self._remote.get(key)
        foreign = have is not None and have.lease not in self.leases.asked
        if have is not None and foreign:
            self._registry.put_foreign(key, have.value)
        elif key not in self._missing:
            self._registry.delete_foreign(key)
        if key in self._dirty or key in self._flying:
            return
        own = self._registry.own(key)
        if own is None:
            if have is not None and self.leases.states.get(have.lease) == "held":
                self._soil(key)
        elif have is not None and foreign:
            if key not in self._contested:  # putting the key again would begin a fight without an end
                self._contested.add(key)
                log.warning("etcd: %s is also held by another node (lease %x), whose value stands now", key, have.lease)
        elif (have is None or (have.value, have.lease) != own) and key not in self._oversized:
            self._soil(key)

    def _soil(self, key: str) -> None:
        if not self._closed and key.startswith(SHARED):
            self._dirty[key] = None
            self.wake.set()

    def _known(self, key: str) -> int:
        """The last known revision of a key."""
        have = self._remote.get(key)
        return max(have.revision if have is not None else 0, self._gone.get(key, 0))

    def _forget_ended(self, until: int) -> None:
        # The next holder's keys can be heard of before the answer that our lease has ended: they are foreign from now.
        if forgotten := self.leases.forget_ended(until):
            self._settle_leases(forgotten)

    def _settle_leases(self, leases: Collection[int]) -> None:
        for key in [key for key, item in self._remote.items() if item.lease in leases]:
            self._settle(key)
