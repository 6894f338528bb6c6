"""How many idle blocks are kept: as few as allowed, or as many as prompts ask for again."""

import hypothesis.strategies as st
from hypothesis import given

from dynamod.kvcache.idle import EARNS, IdleLimit


def test_what_is_asked_for_again_is_kept_the_next_time() -> None:
    limit = IdleLimit(2, 10)
    limit.evicted([1, 2, 3, 4])
    assert limit.blocks == 2
    limit.missed([7, 1, 2])
    assert limit.blocks == 2, "nothing can be cached behind a block that is not"
    limit.missed([1, 2, 3, 7])
    assert limit.blocks == 5
    limit.missed([1, 2, 3])
    assert limit.blocks == 5, "counted once"


def test_what_nobody_asks_for_is_kept_no_longer() -> None:
    limit = IdleLimit(2, 10)
    limit.evicted(range(8))
    limit.missed(range(8))
    assert limit.blocks == 10
    for number in range(100, 100 + EARNS * 8):
        limit.evicted([number])
    assert limit.blocks == 2


@given(
    st.integers(0, 20),
    st.integers(1, 20),
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), max_size=20, unique=True)), max_size=50),
)
def test_it_stays_within_its_bounds_and_forgets(least: int, most: int, events: list[tuple[bool, list[int]]]) -> None:
    limit = IdleLimit(least, most)
    for evicted, names in events:
        (limit.evicted if evicted else limit.missed)(names)
        assert min(least, most) <= limit.blocks <= most
        assert len(limit._gone) <= most
