"""The choice of an instance, as properties of a pure function."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.errors import UserError
from dynamod.message.registry import Instance
from dynamod.router.policy import MODES, RouterMode, choose, mode_of

instances = st.lists(
    st.builds(
        lambda number, state: Instance("dynamo", "backend", "generate", number, {}, state),
        st.integers(1, 2**63 - 1),
        st.sampled_from(["ready", "ready", "draining"]),
    ),
    max_size=8,
    unique_by=lambda instance: instance.instance_id,
)
modes = st.sampled_from(MODES)
turns = st.integers(0, 10**9)


def ready(found: Sequence[Instance]) -> list[Instance]:
    return [instance for instance in found if instance.state == "ready"]


@given(modes, instances, turns, st.integers(), st.data())
def test_only_ready_untried_instances_are_chosen(
    mode: RouterMode, live: list[Instance], turn: int, seed: int, data: st.DataObject
) -> None:
    ids = [instance.instance_id for instance in live]
    tried = data.draw(st.sets(st.sampled_from(ids) if ids else st.nothing()) | st.just({7}))
    chosen = choose(mode, live, turn, random.Random(seed), tried)
    left = [instance for instance in ready(live) if instance.instance_id not in tried]
    if left:
        assert chosen in left
    else:
        assert chosen is None


@given(modes, instances, turns, st.integers())
def test_each_try_finds_another_until_none_is_left(
    mode: RouterMode, live: list[Instance], turn: int, seed: int
) -> None:
    tried: list[int] = []
    while (chosen := choose(mode, live, turn, random.Random(seed), tried)) is not None:
        assert chosen.instance_id not in tried
        tried.append(chosen.instance_id)
    assert sorted(tried) == sorted(instance.instance_id for instance in ready(live))


@given(instances, turns, st.integers(1, 5), st.randoms(use_true_random=False))
def test_round_robin_is_fair_whatever_the_order(
    live: list[Instance], turn: int, rounds: int, shuffling: random.Random
) -> None:
    expected = len(ready(live))
    counted: Counter[int] = Counter()
    for step in range(rounds * expected):
        shuffling.shuffle(live)
        chosen = choose("round-robin", live, turn + step, random.Random(0))
        assert chosen is not None
        counted[chosen.instance_id] += 1
    assert dict(counted) == {instance.instance_id: rounds for instance in ready(live)}


@given(instances, turns)
def test_round_robin_uses_no_randomness(live: list[Instance], turn: int) -> None:
    source = random.Random(3)
    before = source.getstate()
    choose("round-robin", live, turn, source)
    assert source.getstate() == before


@given(instances, st.integers())
def test_random_depends_on_the_given_randomness_alone(live: list[Instance], seed: int) -> None:
    one, two = random.Random(seed), random.Random(seed)
    for turn in range(5):
        assert choose("random", live, turn, one) == choose("random", live, 99 - turn, two)


def test_random_reaches_all() -> None:
    live = [Instance("n", "c", "e", number, {}) for number in range(5)]
    source = random.Random(1)
    found = [choose("random", live, 0, source) for _ in range(200)]
    assert {instance.instance_id for instance in found if instance is not None} == set(range(5))


@pytest.mark.parametrize("name", ["round-robin", "round_robin", "Round_Robin", "random", "RANDOM"])
def test_modes_by_name(name: str) -> None:
    assert mode_of(name) == name.lower().replace("_", "-")


def test_an_unknown_mode_lists_the_known() -> None:
    with pytest.raises(UserError, match="unknown router mode 'kv'") as caught:
        mode_of("kv")
    assert all(mode in caught.value.line() for mode in MODES)
