"""What a tier keeps within its bytes, what it tells, and which blocks were asked for often enough."""

from collections import OrderedDict

import hypothesis.strategies as st
from hypothesis import given

from dynamod.features.tiers.asked import Asked
from dynamod.features.tiers.level import HostLevel
from dynamod.message.kv_events import TierEvent, TierStored


class Told:
    """A router's view."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()

    def __call__(self, event: TierEvent) -> None:
        assert event.medium == "CPU_PINNED"
        if isinstance(event, TierStored):
            assert self.blocks.isdisjoint(event.blocks)
            self.blocks |= set(event.blocks)
        else:
            assert self.blocks >= set(event.blocks)
            self.blocks -= set(event.blocks)


_OPERATION = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 12), st.integers(1, 60)),
    st.tuples(st.just("touch"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("discard"), st.integers(0, 12), st.just(0)),
)


@given(st.lists(_OPERATION, max_size=80), st.integers(1, 120))
def test_the_host_keeps_what_was_used_last_within_its_bytes(operations: list[tuple[str, int, int]], most: int) -> None:
    told = Told()
    level, model = HostLevel(most, told), OrderedDict[int, bytes]()
    for what, name, size in operations:
        if what == "put":
            level.put(name, size, bytes(size))
            if size <= most:
                model.setdefault(name, bytes(size))
            while sum(map(len, model.values())) > most:
                model.popitem(last=False)
        elif what == "touch":
            level.touch([name])
            if name in model:
                model.move_to_end(name)
        else:
            level.discard(name)
            model.pop(name, None)
        now = level.statistics()
        assert level.names() == tuple(model)
        assert told.blocks == set(model)
        assert (now.blocks, now.bytes) == (len(model), sum(map(len, model.values())))
        assert now.bytes <= most
        assert all(level.get(name) == model.get(name) for name in range(13))
    assert now.stored - now.dropped >= len(model) if operations else True


def test_a_block_that_is_larger_than_all_room_costs_no_other() -> None:
    level = HostLevel(10, lambda _event: None)
    level.put(1, 10, bytes(10))
    level.put(2, 11, bytes(11))
    assert level.names() == (1,)
    assert level.get(2) is None
    assert level.statistics().refused == 1


@given(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=20), st.integers(1, 4))
def test_blocks_are_counted_once_for_each_prompt(prompts: list[list[int]], enough: int) -> None:
    asked = Asked(enough)
    for prompt in prompts:
        asked.ask(prompt)
    for name in range(10):
        assert asked.often(name) == (enough == 1 or sum(name in prompt for prompt in prompts) >= enough)


def test_of_too_many_blocks_those_are_forgotten_that_nobody_has_asked_for_longest() -> None:
    asked = Asked(2, most=4)
    asked.ask([1, 2, 3])
    asked.ask([1])
    asked.ask([4, 5])
    assert len(asked) == 4
    asked.ask([2, 3, 4, 5])
    assert [asked.often(name) for name in range(1, 6)] == [False, False, True, True, True]
    asked.ask(range(100))
    assert len(asked) == 4
