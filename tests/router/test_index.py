"""The block index against a naive model: per worker the set of blocks it has, by name."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamod.kvcache.hashes import chain
from dynamod.message.kv_events import Cleared, Removed, Snapshot, Stored
from dynamod.router.approx import ApproxIndex
from dynamod.router.bitsets import MANY, Bitset, prefixes
from dynamod.router.index import BlockIndex

LOCAL = st.lists(st.integers(1, 3), min_size=1, max_size=5)
"""Few local hashes, so that prompts share prefixes."""


def stored(local: list[int], names: list[int] | None = None, parent: int | None = None) -> Stored:
    blocks = chain(local) if names is None else names
    return Stored(parent, tuple(blocks), tuple(local))


class Model(RuleBasedStateMachine):
    """Engine's names are the path as a number, so that they differ from the hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex()
        self.has: dict[int, dict[int, tuple[int, ...]]] = {}  # worker -> name -> path of local hashes

    @staticmethod
    def name(path: tuple[int, ...]) -> int:
        return int("".join(map(str, path)))

    @rule(worker=st.integers(0, 3), path=LOCAL, known=st.integers(0, 5))
    def store(self, worker: int, path: list[int], known: int) -> None:
        known = min(known, len(path) - 1)
        names = [self.name(tuple(path[: depth + 1])) for depth in range(len(path))]
        parent = names[known - 1] if known else None
        placed = self.index.apply(worker, stored(path[known:], names[known:], parent))
        assert placed == (parent is None or parent in self.has.get(worker, {}))
        if placed:
            for depth in range(known, len(path)):
                self.has.setdefault(worker, {})[names[depth]] = tuple(path[: depth + 1])

    @rule(worker=st.integers(0, 3), path=LOCAL)
    def remove(self, worker: int, path: list[int]) -> None:
        name = self.name(tuple(path))
        self.index.apply(worker, Removed((name, 987654321)))
        self.has.get(worker, {}).pop(name, None)

    @rule(worker=st.integers(0, 3))
    def clear(self, worker: int) -> None:
        self.index.apply(worker, Cleared())
        self.has.pop(worker, None)

    @rule(path=LOCAL)
    def find(self, path: list[int]) -> None:
        expected: dict[int, int] = {}
        for worker, names in self.has.items():
            paths, depth = set(names.values()), 0
            while depth < len(path) and tuple(path[: depth + 1]) in paths:
                depth += 1
            if depth:
                expected[worker] = depth
        assert self.index.find(chain(path)) == expected

    @rule()
    def dump(self) -> None:
        again = BlockIndex()
        again.load(self.index.dump())
        self.index = again

    @invariant()
    def counts(self) -> None:
        for worker, names in self.has.items():
            assert self.index.count(worker) == len(names)
        paths = {path for names in self.has.values() for path in names.values()}
        assert self.index.statistics().blocks == len(paths)


Model.TestCase.settings = settings(stateful_step_count=40)
TestIndex = Model.TestCase


@example([[True, True, True, False]] * MANY + [[True, False, True, True]] * MANY + [[True] * 4])
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), max_size=3 * MANY))
def test_prefixes_of_few_and_of_many_workers_are_those_of_each_alone(caches: list[list[bool]]) -> None:
    """`caches`: of each worker, which of four blocks are in its cache."""
    bits = Bitset()
    masks = [sum(bits.of(worker) for worker, has in enumerate(caches) if has[block]) for block in range(4)]
    alone = {worker: has.index(False) if False in has else 4 for worker, has in enumerate(caches)}
    assert prefixes(dict(enumerate(masks)).get, bits, range(4)) == {worker: n for worker, n in alone.items() if n}


def test_a_hole_ends_a_prefix() -> None:
    index = BlockIndex()
    path = chain([1, 2, 3])
    index.apply(7, stored([1, 2, 3]))
    assert index.find(path) == {7: 3}
    index.apply(7, Removed((path[0],)))
    assert index.find(path) == {}
    index.apply(7, stored([1]))
    assert index.find(path) == {7: 3}


def test_a_block_behind_an_unknown_parent_is_left_out_and_counted() -> None:
    index = BlockIndex()
    assert not index.apply(1, stored([2], [22], parent=11))
    assert index.statistics().orphans == 1
    assert index.count(1) == 0


def test_two_names_of_one_block() -> None:
    """Engines may keep a block twice; it is there until both are gone."""
    index = BlockIndex()
    index.apply(1, stored([5], [10]))
    index.apply(1, stored([5], [11]))
    index.apply(1, Removed((10,)))
    assert index.find(chain([5])) == {1: 1}
    index.apply(1, Removed((11,)))
    assert index.find(chain([5])) == {}


def test_a_name_may_be_given_to_another_block() -> None:
    index = BlockIndex()
    index.apply(1, stored([5], [10]))
    index.apply(1, stored([6], [10]))
    assert index.find(chain([5])) == {}
    assert index.find(chain([6])) == {1: 1}


def test_the_oldest_blocks_are_forgotten_above_the_cap() -> None:
    index = BlockIndex(max_blocks=100)
    for number in range(1, 501):
        index.apply(1, stored([number]))
    statistics = index.statistics()
    assert statistics.blocks <= 100
    assert statistics.forgotten >= 400
    assert index.find(chain([500])) == {1: 1}
    assert index.find(chain([1])) == {}
    index.apply(1, Removed(tuple(chain([1]))))
    index.remove_worker(1)
    assert index.statistics().blocks == 0


def test_blocks_at_the_same_workers_share_one_integer() -> None:
    """A worker beyond the thirtieth has a bit that makes an integer of its own for each block else."""
    index, names = BlockIndex(), tuple(range(100))
    for worker in range(40):
        index.apply(worker, Snapshot(names, names))
    assert len({id(mask) for mask in index._masks.values()}) == 1
    index.apply(7, Removed(names[50:]))
    assert len({id(mask) for mask in index._masks.values()}) == 2
    index.remove_worker(8)
    assert len({id(mask) for mask in index._masks.values()}) == 2
    assert index.find(names) == {worker: 50 if worker == 7 else 100 for worker in range(40) if worker != 8}


def test_bits_of_workers_that_left_are_used_again_without_their_blocks() -> None:
    index = BlockIndex()
    for worker in range(100):
        index.apply(worker, stored([1, 2]))
        index.remove_worker(worker)
    index.apply(1000, Snapshot((1,), (99,)))
    assert index.find([99]) == {1000: 1}
    assert index.find(chain([1, 2])) == {}


@given(st.lists(st.tuples(st.integers(0, 2), LOCAL, st.floats(0, 50)), max_size=30))
@example([(0, [1], 27.26949686576561), (0, [2], 1.052518062177544), (0, [1], 50.0), (0, [1], 50.0)])  # rounded
def test_the_guess_holds_for_its_time(sent: list[tuple[int, list[int], float]]) -> None:
    index, now, seen = ApproxIndex(ttl=100.0), 0.0, []
    for worker, path, pause in sent:
        now += pause
        index.sent(worker, chain(path), now)
        seen.append((worker, path, now))
    for _, path, _ in seen:
        found = index.find(chain(path), now)
        for worker in range(3):
            live = [other for who, other, when in seen if who == worker and when + 100.0 > now]
            depth = 0
            while depth < len(path) and any(other[: depth + 1] == path[: depth + 1] for other in live):
                depth += 1
            assert found.get(worker, 0) == depth


def test_the_guess_is_bounded() -> None:
    index = ApproxIndex(max_blocks=10)
    for number in range(1, 100):
        index.sent(1, [number], float(number) / 100)
    assert index.count(1) <= 10
    index.remove_worker(1)
    assert index.count(1) == 0


@pytest.mark.parametrize("event", [Removed((1,)), Cleared()])
def test_news_of_an_unknown_worker_pass(event: Any) -> None:
    index = BlockIndex()
    assert index.apply(5, event)
    assert index.statistics().workers == 0
