"""The node's registry with a mirror and with keys of other nodes, against a naive model."""

import random

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dynamod.discovery.memory import LEASES, MemoryRegistry

KEYS = st.sampled_from(["a/1", "a/2", "b/1"])
VALUES = st.binary(max_size=1)


class Copy:
    """A mirror that repeats what it is told."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[bytes, int]] = {}
        self.leases: set[int] = set()

    def granted(self, lease: int) -> None:
        assert lease not in self.leases
        self.leases.add(lease)

    def revoked(self, lease: int, keys: list[str]) -> None:
        self.leases.remove(lease)
        assert keys == sorted(key for key, (_, holder) in self.keys.items() if holder == lease)
        for key in keys:
            del self.keys[key]

    def put(self, key: str, value: bytes, lease: int) -> None:
        assert lease in self.leases
        assert self.keys.get(key) != (value, lease), "only changes are told"
        self.keys[key] = (value, lease)

    def deleted(self, key: str, lease: int) -> None:
        assert self.keys.pop(key)[1] == lease


class Mirrored(RuleBasedStateMachine):
    """Two layers and a mirror against two dicts."""

    leases: Bundle[int] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.registry = MemoryRegistry(random.Random(0))
        self.copy = Copy()
        self.registry.mirror = self.copy
        self.own: dict[str, tuple[bytes, int]] = {}
        self.foreign: dict[str, bytes] = {}
        self.live: list[int] = []
        self.seen: dict[str, bytes] = {}
        self.registry.watch("a/", self.watch)

    def watch(self, key: str, value: bytes | None) -> None:
        if value is None:
            del self.seen[key]
        else:
            assert self.seen.get(key) != value, "only changes are told"
            self.seen[key] = value
        assert self.copy.keys == self.own_now(), "the mirror is told first"

    def own_now(self) -> dict[str, tuple[bytes, int]]:
        return {key: (value, lease) for key, value, lease in self.registry.own_items()}

    @rule(target=leases, wanted=st.sampled_from([-1, 0, 1, 2, LEASES - 1, LEASES, LEASES * 4]))
    def grant(self, wanted: int) -> int:
        lease = self.registry.grant(wanted)
        assert 0 < lease < LEASES
        assert lease not in self.live
        assert lease == wanted or wanted in self.live or not 0 < wanted < LEASES
        self.live.append(lease)
        return lease

    @rule(lease=leases, key=KEYS, value=VALUES)
    def put(self, lease: int, key: str, value: bytes) -> None:
        if lease in self.live:
            self.registry.put(key, value, lease)
            self.own[key] = (value, lease)

    @rule(lease=leases, key=KEYS)
    def delete(self, lease: int, key: str) -> None:
        self.registry.delete(key, lease)
        if self.own.get(key, (b"", -1))[1] == lease:
            del self.own[key]

    @rule(lease=leases)
    def revoke(self, lease: int) -> None:
        self.registry.revoke(lease)
        if lease in self.live:
            self.live.remove(lease)
        self.own = {key: held for key, held in self.own.items() if held[1] != lease}

    @rule(key=KEYS, value=VALUES)
    def put_foreign(self, key: str, value: bytes) -> None:
        self.registry.put_foreign(key, value)
        self.foreign[key] = value

    @rule(key=KEYS)
    def delete_foreign(self, key: str) -> None:
        self.registry.delete_foreign(key)
        self.foreign.pop(key, None)

    @invariant()
    def agrees(self) -> None:
        every = self.foreign | {key: value for key, (value, _) in self.own.items()}
        assert self.registry.items() == sorted(every.items())
        assert self.seen == {key: value for key, value in every.items() if key.startswith("a/")}
        assert self.registry.leases() == self.live
        assert self.registry.foreign_items() == sorted(self.foreign.items())
        assert self.own_now() == self.own == self.copy.keys
        assert all(self.registry.own(key) == held for key, held in self.own.items())
        assert self.copy.leases == set(self.live)
        statistics = self.registry.statistics()
        assert (statistics.keys, statistics.foreign) == (len(self.own), len(self.foreign))


TestMirrored = Mirrored.TestCase


def test_a_watcher_that_puts_while_a_lease_ends() -> None:
    registry = MemoryRegistry(random.Random(0))
    old, new = registry.grant(), registry.grant()
    registry.put("1", b"x", old)
    registry.put("2", b"x", old)
    news: list[tuple[str, bytes | None]] = []

    def heir(key: str, value: bytes | None) -> None:
        news.append((key, value))
        if value is None:
            registry.put("2", b"y", new)

    registry.follow("", heir)
    registry.revoke(old)
    assert news == [("1", None), ("2", b"y")]
    assert registry.items() == [("2", b"y")]


def test_without_a_mirror_again() -> None:
    registry = MemoryRegistry(random.Random(0))
    copy = Copy()
    registry.mirror = copy
    lease = registry.grant()
    registry.mirror = None
    registry.put("a", b"", lease)
    assert copy.leases == {lease}
    assert copy.keys == {}
    assert registry.own_items() == [("a", b"", lease)]
