"""The memory budget of a node."""

from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.planner.memory import MemoryBudget
from dynamod.message.pools import Pool, Replica


def pool(*memory: int, states: str = "", free: int | None = None) -> Pool:
    """A pool whose workers are ready, or by letter (s: starting), with bytes each."""
    states = states or "r" * len(memory)
    names = {"r": "Ready", "s": "Starting"}
    replicas = [Replica(replica=at, state=names[states[at]], pid=one) for at, one in enumerate(memory)]
    return Pool(replicas=tuple(replicas), free=free)


def budget_of(limit: int) -> MemoryBudget:
    """Of a node whose processes take as many bytes as their number says."""
    return MemoryBudget(limit, lambda pid: pid)


def free(budget: MemoryBudget, **pools: Pool) -> list[int | None]:
    return [one.free for one in budget.bound(pools).values()]


def test_each_takes_what_the_largest_ready_one_takes() -> None:
    assert free(budget_of(100), a=pool(10, 20)) == [3]
    assert free(budget_of(100), a=pool(10, 20), b=pool(50)) == [0, 0]


def test_one_that_starts_will_take_as_much() -> None:
    assert free(budget_of(100), a=pool(20, 1, states="rs")) == [3]


def test_what_is_not_known_is_tried_with_one() -> None:
    budget = budget_of(100)
    assert free(budget, a=pool()) == [1]
    assert free(budget, a=pool(5, states="s")) == [0]
    assert free(budget, a=pool(30)) == [2]
    assert free(budget, a=pool()) == [3], "it is known from then on"


def test_devices_bound_it_too() -> None:
    assert free(budget_of(100), a=pool(20, free=1), b=pool(20, free=9)) == [1, 3]


@given(st.integers(1, 1000), st.lists(st.lists(st.integers(0, 300), max_size=4), min_size=1, max_size=3))
def test_no_pool_gets_more_than_fits(limit: int, memory: list[list[int]]) -> None:
    pools = {str(at): pool(*one) for at, one in enumerate(memory)}
    for (_, before), after in zip(pools.items(), budget_of(limit).bound(pools).values(), strict=True):
        each = max((one.pid for one in before.replicas), default=0)
        used = sum(
            max((one.pid for one in other.replicas), default=0) * len(other.replicas) for other in pools.values()
        )
        assert after.free is not None
        assert after.free >= 0
        assert not after.free or used + after.free * each <= limit
