"""The mirror's decisions against a small store with leases and history: whatever gets lost, in the end all agree."""

import random
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dynamod.discovery.etcd.client import Change, Item
from dynamod.discovery.etcd.mirror import BATCH_BYTES, BATCH_KEYS, Batch, EtcdMirror
from dynamod.discovery.memory import MemoryRegistry

Outcome = Callable[[], object]
Call = Callable[[Any], Outcome]


class Store:
    """What etcd promises: one revision per change, leases that take their keys with them, a history."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[str, Item] = {}
        self.leases: set[int] = set()
        self.history: list[Change] = []

    def change(self, changes: dict[str, tuple[bytes, int] | None]) -> int:
        changes = {key: change for key, change in changes.items() if change is not None or key in self.keys}
        if changes:
            self.revision += 1
        for key, change in changes.items():
            if change is None:
                del self.keys[key]
                self.history.append(Change(key, None, self.revision))
            else:
                self.keys[key] = Item(*change, self.revision)
                self.history.append(Change(key, self.keys[key], self.revision))
        return self.revision

    def end(self, lease: int) -> int:
        self.leases.discard(lease)
        return self.change({key: None for key, item in self.keys.items() if item.lease == lease})


class Peer:
    """A node: its registry, its mirror, and where its watch has come to."""

    def __init__(self, store: Store, number: int) -> None:
        self.store, self.number = store, number
        self.registry = MemoryRegistry(random.Random(number))
        self.mirror = EtcdMirror(self.registry)
        self.asking: set[int] = set()
        self.resync()

    def resync(self) -> None:
        for lease in self.asking:
            self.mirror.granted_at_last(lease, certain=False)
        self.asking.clear()
        self.round: Generator[None, None, None] | None = None
        self.next = self.mirror.resync(dict(self.store.keys), self.store.revision)

    def hear(self, revisions: int = 100) -> None:
        """Take the events of so many revisions."""
        found = [change for change in self.store.history if change.revision >= self.next]
        for revision in sorted({change.revision for change in found})[:revisions]:
            self.mirror.apply([change for change in found if change.revision == revision])
            self.next = revision + 1

    def say(self) -> None:
        """Finish the round that is under way, then a whole one, nothing lost."""
        while self.round is not None:
            self.step(lambda: True)
        self.step(lambda: True)
        while self.round is not None:
            self.step(lambda: True)

    def step(self, arrives: Callable[[], bool]) -> None:
        """One step of a round: hear what came of the calls before, make those that come next."""
        self.round = self.round or self.rounds(arrives)
        if next(self.round, self) is self:
            self.round = None

    def rounds(self, arrives: Callable[[], bool]) -> Generator[None, None, None]:
        """Calls reach the store if they arrive; what came of them is heard only after the `yield`."""
        for plan in (self.ends, self.grants, self.words):
            outcomes = [call(argument) if arrives() else None for call, argument in plan()]
            yield
            for outcome in outcomes:
                if outcome is not None:
                    outcome()
            if None in outcomes:
                return self.resync()

    def ends(self) -> list[tuple[Call, Any]]:
        return [(self.end, lease) for lease in self.mirror.leases.ends()]

    def grants(self) -> list[tuple[Call, Any]]:
        self.asking.update(self.mirror.leases.wanted(taken=True))
        return [(self.grant, lease) for lease in self.mirror.leases.wanted(taken=True)]

    def words(self) -> list[tuple[Call, Any]]:
        batches, deletions = self.mirror.take()
        return [*((self.put, batch) for batch in batches), *((self.delete, deletion) for deletion in deletions)]

    def end(self, lease: int) -> Outcome:
        return partial(self.mirror.ended, lease, self.store.end(lease))

    def grant(self, lease: int) -> Outcome:
        free = lease not in self.store.leases
        self.store.leases.add(lease)

        def outcome() -> None:
            self.asking.discard(lease)
            if free:
                self.mirror.granted_at_last(lease)
            else:
                self.mirror.taken(lease)

        return outcome

    def put(self, batch: Batch) -> Outcome:
        if batch.lease in self.store.leases:
            revision = self.store.change({key: (value, batch.lease) for key, value in batch.items})
            return partial(self.mirror.done, batch, revision)
        return partial(self.missing, batch)

    def missing(self, batch: Batch) -> None:
        self.mirror.failed(key for key, _ in batch.items)
        self.mirror.lost(batch.lease)

    def delete(self, deletion: tuple[str, int]) -> Outcome:
        key, lease = deletion
        item = self.store.keys.get(key)
        revision = self.store.change({key: None}) if item is not None and item.lease == lease else None
        return partial(self.mirror.deleted_at_last, key, lease, revision)


class World(RuleBasedStateMachine):
    """Two nodes with keys of their own names, and everything that can happen to them."""

    peer = st.integers(0, 1)

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.peers = [Peer(self.store, 0), Peer(self.store, 1)]
        self.old: list[list[int]] = [[], []]
        self.crashed: set[int] = set()

    @invariant()
    def own_names_are_own_keys(self) -> None:
        """No echo of what a node did is ever seen there as another node's."""
        for who, peer in enumerate(self.peers):
            if who not in self.crashed:  # the keys of the bridge before are strange to the next
                own = sorted((key, value) for key, value, _ in peer.registry.own_items())
                assert peer.registry.items(f"v1/{who}/") == own

    @rule(who=peer, of=st.sampled_from([None, 0, 1]))
    def grant(self, who: int, of: int | None) -> None:
        """A lease with a new id, or with the last one of a node: a process that comes back, or moves, keeps its id."""
        wanted = self.old[of][-1] if of is not None and self.old[of] else 0
        if wanted not in self.peers[1 - who].registry.leases():
            self.old[who].append(self.peers[who].registry.grant(wanted))

    @rule(who=peer, which=st.integers(0, 1), name=st.integers(0, 1), value=st.sampled_from([b"x", b"y"]))
    def put(self, who: int, which: int, name: int, value: bytes) -> None:
        registry = self.peers[who].registry
        if leases := registry.leases():
            registry.put(f"v1/{who}/{name}", value, leases[which % len(leases)])

    @rule(who=peer, name=st.integers(0, 1))
    def delete(self, who: int, name: int) -> None:
        registry, key = self.peers[who].registry, f"v1/{who}/{name}"
        if (own := registry.own(key)) is not None:
            registry.delete(key, own[1])

    @rule(who=peer, which=st.integers(0, 1))
    def revoke(self, who: int, which: int) -> None:
        registry = self.peers[who].registry
        if leases := registry.leases():
            registry.revoke(leases[which % len(leases)])

    @rule(who=peer, steps=st.integers(1, 4), loses=st.sampled_from([99, 99, 99, 0, 1, 2]))
    def say(self, who: int, steps: int, loses: int) -> None:
        count = iter(range(1000))
        for _ in range(steps):
            self.peers[who].step(lambda: next(count) != loses)

    @rule(who=peer, revisions=st.integers(1, 4))
    def hear(self, who: int, revisions: int) -> None:
        self.peers[who].hear(revisions)

    @initialize(crashes=st.booleans())
    def nature(self, crashes: bool) -> None:
        self.crashes = crashes

    @rule(who=peer, which=st.integers(0, 5), kind=st.sampled_from(["cut", "grace", "expiry", "loss", "crash", ""]))
    def fault(self, who: int, which: int, kind: str) -> None:
        peer = self.peers[who]
        if kind == "cut":  # what is under way has reached the store; nobody hears what came of it
            peer.resync()
        elif kind == "grace":
            peer.mirror.expire()
        elif kind == "expiry" and self.store.leases:
            self.store.end(sorted(self.store.leases)[which % len(self.store.leases)])
        elif kind == "loss":
            self.store.__init__()  # type: ignore[misc]
            for each in self.peers:
                each.resync()
        elif kind == "crash" and self.crashes:
            self.crashed.add(who)
            peer.mirror.close()
            peer.asking.clear()
            peer.mirror = EtcdMirror(peer.registry)
            peer.resync()

    def teardown(self) -> None:
        one, two = self.peers
        for _ in range(12):
            for peer in self.peers:
                for lease in peer.mirror.leases.held():  # the keep-alive
                    if lease not in self.store.leases:
                        peer.mirror.lost(lease)
                peer.say()
                peer.hear()
            # What nobody keeps alive expires: leases of a bridge that crashed, or whose grant nobody heard of.
            kept = {lease for peer in self.peers for lease in peer.mirror.leases.held()}
            for lease in self.store.leases - kept:
                self.store.end(lease)
        for peer in self.peers:
            peer.mirror.expire()
            assert not peer.mirror.statistics()["pending"], "it comes to rest"
            assert set(peer.mirror.leases.states.values()) <= {"held"}
        own = {key: (value, lease) for peer in self.peers for key, value, lease in peer.registry.own_items()}
        assert {key: (item.value, item.lease) for key, item in self.store.keys.items()} == own
        assert one.registry.items() == two.registry.items() == sorted((key, value) for key, (value, _) in own.items())


TestWorld = World.TestCase
TestWorld.settings = settings(stateful_step_count=50)


@pytest.fixture
def peer() -> Peer:
    return Peer(Store(), 1)


def test_batches_have_bounds(peer: Peer) -> None:
    lease, other = peer.registry.grant(), peer.registry.grant()
    for number in range(250):
        peer.registry.put(f"v1/{number}", b"", lease)
    for number in range(3):
        peer.registry.put(f"v1/big/{number}", bytes(BATCH_BYTES // 2), other)
    for granted in (lease, other):
        peer.mirror.granted_at_last(granted)
    batches, deletions = peer.mirror.take()
    assert [(batch.lease, len(batch.items)) for batch in batches] == [
        (lease, BATCH_KEYS),
        (lease, BATCH_KEYS),
        (lease, 50),
        (other, 2),
        (other, 1),
    ]
    assert deletions == []
    assert peer.mirror.take() == ([], []), "each is taken once"


def test_an_older_echo_changes_nothing(peer: Peer) -> None:
    lease = peer.registry.grant()
    peer.registry.put("v1/a", b"1", lease)
    peer.say()
    peer.registry.delete("v1/a", lease)
    peer.say()
    peer.hear(1)
    assert peer.mirror.statistics() == {"remote": 0, "pending": 0, "missing": 0, "contested": 0}
    peer.hear(1)
    assert peer.mirror.take() == ([], [])


def test_a_lease_that_was_never_granted_is_not_revoked(peer: Peer) -> None:
    peer.store.leases.add(7)  # somebody else's
    peer.registry.grant(7)
    peer.say()
    assert peer.mirror.leases.states == {7: "taken"}
    peer.registry.revoke(7)
    assert peer.mirror.leases.ends() == []


def test_a_lease_that_ends_while_it_is_asked_for_is_revoked(peer: Peer) -> None:
    lease = peer.registry.grant()
    peer.step(lambda: True)
    peer.step(lambda: True)
    assert peer.store.leases == {lease}
    peer.registry.revoke(lease)
    peer.say()
    peer.say()
    assert peer.store.leases == set()


@pytest.mark.parametrize("before", ["answer", "events"])
def test_a_lease_that_goes_to_another_node_is_theirs(peer: Peer, before: str) -> None:
    """Whatever is heard first: that the lease has ended, or what the next holder of its id puts."""
    peer.registry.grant(7)
    peer.registry.put("v1/a", b"ours", 7)
    peer.say()
    peer.hear()
    peer.registry.revoke(7)
    ((end, lease),) = peer.ends()
    answer = end(lease)
    other = Peer(peer.store, 2)
    other.registry.grant(7)
    other.registry.put("v1/b", b"theirs", 7)
    other.say()
    if before == "answer":
        answer()
        peer.hear()
    else:
        peer.hear()
        answer()
    assert peer.registry.items() == [("v1/b", b"theirs")]
    assert peer.mirror.leases.asked == set()


def test_a_closed_mirror_is_silent(peer: Peer) -> None:
    lease = peer.registry.grant()
    peer.say()
    peer.mirror.close()
    peer.registry.put("v1/a", b"", lease)
    assert peer.mirror.take() == ([], [])


async def test_what_concerns_the_node_alone_stays_there() -> None:
    memory = MemoryRegistry(random.Random(0))
    lease = memory.grant()
    memory.put("local/before", b"x", lease)
    mirror = EtcdMirror(memory)
    memory.put("local/after", b"x", lease)
    memory.put("v1/shared", b"x", lease)
    mirror.granted_at_last(lease)
    assert [key for batch in mirror.take()[0] for key, _ in batch.items] == ["v1/shared"]
