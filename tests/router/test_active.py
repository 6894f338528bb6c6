"""Load of workers as a router knows it: what was begun is there until it ends, and nothing stays."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamod.router.active import EXPIRY, ActiveLoad, Load


def path(leaf: int) -> list[int]:
    """Blocks of a prompt: block n stands behind block n // 2."""
    blocks: list[int] = []
    while leaf:
        blocks.insert(0, leaf)
        leaf //= 2
    return blocks


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.load = ActiveLoad()
        self.open: dict[int, tuple[int, list[int], int]] = {}
        self.last: dict[int, Load] = {}

    @rule(key=st.integers(0, 5), worker=st.integers(0, 2), leaf=st.integers(0, 60), prefill=st.integers(0, 9))
    def begin(self, key: int, worker: int, leaf: int, prefill: int) -> None:
        self.load.start(key, worker, path(leaf), prefill, 0.0)
        self.open[key] = (worker, path(leaf), prefill)

    @rule(key=st.integers(0, 9))
    def computed(self, key: int) -> None:
        self.load.prefill_completed(key)
        if key in self.open:
            self.open[key] = (*self.open[key][:2], 0)

    @rule(key=st.integers(0, 9))
    def end(self, key: int) -> None:
        self.load.finish(key)
        self.open.pop(key, None)

    @rule(key=st.integers(6, 9), worker=st.integers(0, 2), leaf=st.integers(0, 60))
    def published(self, key: int, worker: int, leaf: int) -> None:
        self.load.start(key, worker, path(leaf), 1, 0.0, published=True)
        self.open[key] = (worker, path(leaf), 1)

    @rule(worker=st.integers(0, 2))
    def drop_published(self, worker: int) -> None:
        self.load.drop_published(worker)
        self.open = {key: one for key, one in self.open.items() if one[0] != worker or key < 6}

    @rule(worker=st.integers(0, 2))
    def drop(self, worker: int) -> None:
        self.load.drop(worker)
        self.open = {key: one for key, one in self.open.items() if one[0] != worker}

    @rule(leaf=st.integers(0, 60))
    def sharing(self, leaf: int) -> None:
        each: dict[int, int] = {}
        for worker in range(3):
            used = {block for who, blocks, _ in self.open.values() if who == worker for block in blocks}
            each[worker] = len(used & set(path(leaf)))
        shared = {worker: depth for worker, depth in each.items() if depth}
        assert self.load.sharing(path(leaf), range(4)) == shared
        assert set(self.load.users(path(leaf))) == shared.keys()

    @invariant()
    def sums(self) -> None:
        for worker in range(3):
            mine = [one for one in self.open.values() if one[0] == worker]
            unique = Counter(block for _, blocks, _ in mine for block in blocks)
            assert self.load.of(worker) == Load(len(unique) + len(mine), sum(one[2] for one in mine), len(mine))
            if worker not in self.load.changed:
                assert self.load.of(worker) == self.last.get(worker, Load(0, 0, 0)), "what changes is said"
            self.last[worker] = self.load.of(worker)
        self.load.changed.clear()
        assert len(self.load) == len(self.open)


Model.TestCase.settings = settings(stateful_step_count=40)
TestActive = Model.TestCase


def test_what_was_never_ended_does_not_weigh_for_ever() -> None:
    load = ActiveLoad()
    load.start("old", 1, [1, 2], 30, 0.0)
    load.start("new", 1, [1], 5, 100.0)
    assert load.expire(EXPIRY + 1) == 1
    assert load.of(1) == Load(2, 5, 1)
    load.finish("old")
    load.finish("new")
    assert load.of(1) == Load(0, 0, 0)
