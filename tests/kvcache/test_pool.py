"""The pool against a naive model: what is in it, who is told, what goes first."""

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamod.kvcache.pool import BlockPool


class Told:
    """A router's view: what it is told must always be what is there."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.parents: dict[int, int | None] = {}

    def stored(self, parent: int | None, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert block not in self.blocks, "told twice"
            self.blocks.add(block)
            self.parents[block] = parent
            parent = block

    def removed(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.blocks.remove(block)


def pool(capacity: int) -> tuple[BlockPool, Told]:
    told = Told()
    return BlockPool(capacity, stored=told.stored, removed=told.removed), told


def test_the_least_recently_freed_goes_first_and_ends_before_beginnings() -> None:
    blocks, told = pool(6)
    assert blocks.take([1, 2, 3])
    assert blocks.take([4, 5, 6])
    blocks.give_back([4, 5, 6])
    blocks.give_back([1, 2, 3])
    assert blocks.take([7, 8])
    assert told.blocks == {1, 2, 3, 4, 7, 8}
    assert blocks.cached_prefix([4, 5, 6]) == 1
    assert blocks.take([9, 10])
    assert told.blocks == {1, 2, 7, 8, 9, 10}


def test_what_is_cached_is_found_and_not_told_again() -> None:
    blocks, told = pool(10)
    assert blocks.take([1, 2])
    blocks.give_back([1, 2])
    assert blocks.take([1, 2, 3])
    assert (blocks.active, blocks.cached) == (3, 0)
    assert told.parents == {1: None, 2: 1, 3: 2}
    assert blocks.take([1, 2, 4])
    assert told.parents[4] == 2
    assert blocks.active == 4


def test_too_much_changes_nothing() -> None:
    blocks, told = pool(3)
    assert blocks.take([1, 2])
    assert not blocks.take([1, 3, 4])
    assert (blocks.active, told.blocks) == (2, {1, 2})
    assert blocks.take([1, 3])


def test_a_partial_block_gets_its_name_when_it_is_full() -> None:
    blocks, told = pool(4)
    mine, other = object(), object()
    assert blocks.take([1, mine], 1)
    assert blocks.take([1, other], 1)
    blocks.fill(mine, 2, 1)
    blocks.fill(other, 2, 1)  # two sequences have written the same
    assert (blocks.active, told.parents) == (2, {1: None, 2: 1})
    blocks.give_back([1, 2])
    assert blocks.active == 2
    blocks.give_back([1, 2])
    assert (blocks.active, blocks.cached_prefix([1, 2])) == (0, 2)


def test_without_caching_nothing_stays_and_nobody_is_told() -> None:
    told = Told()
    blocks = BlockPool(4, caching=False, stored=told.stored, removed=told.removed)
    assert blocks.take([1, 2])
    blocks.give_back([1, 2])
    assert blocks.cached_prefix([1]) == 0
    assert told.parents == {}


class Model(RuleBasedStateMachine):
    """Sequences over a tree of blocks: block n stands behind block n // 2, so prefixes are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.told = pool(12)
        self.open: list[list[int | object]] = []

    @rule(leaf=st.integers(1, 120), partial=st.booleans())
    def take(self, leaf: int, partial: bool) -> None:
        path: list[int | object] = []
        while leaf:
            path.insert(0, leaf)
            leaf //= 2
        full = len(path)
        if partial:
            path.append(object())
        active = {block for sequence in self.open for block in sequence}
        fits = len(active | set(path)) <= 12
        assert self.pool.take(path, full) == fits
        if fits:
            self.open.append(path)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.pool.give_back(self.open.pop(data.draw(st.integers(0, len(self.open) - 1))))

    @precondition(lambda self: any(not isinstance(sequence[-1], int) for sequence in self.open))
    @rule(right=st.integers(0, 1))
    def fill(self, right: int) -> None:
        sequence = next(sequence for sequence in self.open if not isinstance(sequence[-1], int))
        before = sequence[-2]
        assert isinstance(before, int)
        self.pool.fill(sequence[-1], 2 * before + right, before)
        sequence[-1] = 2 * before + right

    @precondition(lambda self: self.pool.cached)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        active = {block for sequence in self.open for block in sequence}
        gone = data.draw(st.sampled_from(sorted(self.told.blocks - active)))
        self.pool.forget([gone])
        self.told.removed([gone])

    @invariant()
    def counts(self) -> None:
        active = {block for sequence in self.open for block in sequence}
        assert self.pool.active == len(active)
        assert self.pool.active + self.pool.cached <= 12
        assert {block for block in active if isinstance(block, int)} <= self.told.blocks
        assert len(self.told.blocks) == self.pool.cached + sum(isinstance(block, int) for block in active)


Model.TestCase.settings = settings(stateful_step_count=40)
TestPool = Model.TestCase
