"""The choice of an instance, as properties of a pure function."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.router.policies import NAMES, mode_of, policy_class
from dynamod.router.policies.base import OVERLOAD, Choice, Question, overload_bound
from dynamod.router.policies.base import choose as chosen_by
from dynamod.router.policies.kv import softmax
from dynamod.router.router import SESSIONS, Prompt, Router, RouterSettings

instances = st.lists(
    st.builds(
        lambda number: Instance("dynamo", "backend", "generate", number, {}),
        st.integers(1, 2**63 - 1),
    ),
    max_size=8,
    unique_by=lambda instance: instance.instance_id,
)
modes = st.sampled_from(NAMES)
turns = st.integers(0, 10**9)


def router(mode: str, source: random.Random, turn: int = 0, **settings: Any) -> Router:
    clock = iter(range(10**9)).__next__
    made = Router("m", 4, RouterSettings(mode, **settings), source, clock, clock)
    made._turn = turn
    return made


def pick(mode: str, live: Sequence[Instance], turn: int, source: random.Random, tried: Any = ()) -> int | None:
    decision = router(mode, source, turn).decide(Prompt("r", 9, (1, 2)), live, tried)
    return decision.chosen if decision is not None else None


@given(modes, instances, turns, st.integers(), st.data())
def test_only_untried_instances_are_chosen(
    mode: str, live: list[Instance], turn: int, seed: int, data: st.DataObject
) -> None:
    ids = [instance.instance_id for instance in live]
    tried = data.draw(st.sets(st.sampled_from(ids) if ids else st.nothing()) | st.just({7}))
    chosen = pick(mode, live, turn, random.Random(seed), tried)
    left = [instance.instance_id for instance in live if instance.instance_id not in tried]
    if left:
        assert chosen in left
    else:
        assert chosen is None


@given(modes, instances, turns, st.integers())
def test_each_try_finds_another_until_none_is_left(mode: str, live: list[Instance], turn: int, seed: int) -> None:
    tried: list[int] = []
    while (chosen := pick(mode, live, turn, random.Random(seed), tried)) is not None:
        assert chosen not in tried
        tried.append(chosen)
    assert sorted(tried) == sorted(instance.instance_id for instance in live)


@given(instances, turns, st.integers(1, 5), st.randoms(use_true_random=False))
def test_round_robin_is_fair_whatever_the_order(
    live: list[Instance], turn: int, rounds: int, shuffling: random.Random
) -> None:
    expected = len(live)
    counted: Counter[int] = Counter()
    for step in range(rounds * expected):
        shuffling.shuffle(live)
        chosen = pick("round-robin", live, turn + step, random.Random(0))
        assert chosen is not None
        counted[chosen] += 1
    assert dict(counted) == {instance.instance_id: rounds for instance in live}


@given(instances, turns)
def test_round_robin_uses_no_randomness(live: list[Instance], turn: int) -> None:
    source = random.Random(3)
    before = source.getstate()
    pick("round-robin", live, turn, source)
    assert source.getstate() == before


@given(modes, instances, st.integers(), st.randoms(use_true_random=False))
def test_equal_randomness_gives_equal_choices_in_any_order(
    mode: str, live: list[Instance], seed: int, shuffling: random.Random
) -> None:
    one, two = random.Random(seed), random.Random(seed)
    for turn in range(5):
        expected = pick(mode, live, turn, one)
        shuffling.shuffle(live)
        assert pick(mode, live, turn, two) == expected


def test_random_reaches_all() -> None:
    live = [Instance("n", "c", "e", number, {}) for number in range(5)]
    source = random.Random(1)
    assert {pick("random", live, 0, source) for _ in range(200)} == set(range(5))


@pytest.mark.parametrize("mode", ["kv", "least-loaded", "power-of-two"])
def test_equal_workers_are_chosen_equally_often(mode: str) -> None:
    live = [Instance("n", "c", "e", number, {}) for number in range(4)]
    source = random.Random(1)
    counted = Counter(pick(mode, live, 0, source) for _ in range(4000))
    assert min(counted.values()) > 850
    assert set(counted) == set(range(4))


def candidate(number: int, cost: float = 0.0, requests: int = 0) -> tuple[int, float, int]:
    return number, cost, requests


def choose(
    mode: str,
    candidates: Sequence[tuple[int, float, int]],
    turn: int,
    random: random.Random,
    temperature: float = 0.0,
    sticky: int | None = None,
) -> Choice:
    """What a policy chooses among workers of which the costs and the numbers of requests are known."""
    ids, costs, requests = (list(column) for column in zip(*candidates, strict=True))
    asked = Question(ids, requests, random, lambda: costs, turn, temperature, sticky)
    return chosen_by(policy_class(mode)(), asked)


def test_kv_takes_the_lowest_total_and_says_who_was_equal() -> None:
    found = choose("kv", [candidate(1, 3.0), candidate(2, 1.0), candidate(3, 1.0)], 0, random.Random(0))
    assert found.instance in (2, 3)
    assert found.tied == (2, 3)
    assert "2 equal" in found.rule
    assert choose("kv", [candidate(1, 3.0), candidate(2, 1.0)], 0, random.Random(0)) == (2, "lowest total", ())


def test_round_robin_says_whose_turn_it_is() -> None:
    some = [candidate(7), candidate(3)]
    said = [choose("round-robin", some, turn, random.Random(0)) for turn in (0, 1, 5)]
    assert [one.rule.partition(" in the")[0] for one in said] == ["place 1 of 2", "place 2 of 2", "place 2 of 2"]


def test_least_loaded_takes_the_fewest_requests() -> None:
    some = [candidate(1, requests=4), candidate(2, requests=2), candidate(3, requests=9)]
    assert choose("least-loaded", some, 0, random.Random(0)).instance == 2


def test_power_of_two_never_takes_the_worst() -> None:
    some = [candidate(number, requests=number) for number in range(5)]
    source = random.Random(4)
    assert 4 not in {choose("power-of-two", some, 0, source).instance for _ in range(300)}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.floats(1e-300, 1e300))
def test_softmax_prefers_low_costs(costs: list[float], temperature: float) -> None:
    chances = softmax(costs, temperature)
    assert sum(chances) == pytest.approx(1)
    ordered = [chance for _, chance in sorted(zip(costs, chances, strict=True), key=lambda pair: pair[0])]
    assert all(one >= two - 1e-12 for one, two in itertools.pairwise(ordered))


def test_temperature_lets_chance_in() -> None:
    some = [candidate(1, 1.0), candidate(2, 2.0)]
    source = random.Random(3)
    counted = Counter(choose("kv", some, 0, source, 1.0).instance for _ in range(2000))
    assert 0.65 < counted[1] / 2000 < 0.8  # e / (1 + e) is 0.731


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_somebody_is_always_calm(requests: list[int]) -> None:
    calm = [count for count in requests if count <= overload_bound(requests)]
    assert calm
    assert min(requests) in calm
    if max(requests) <= OVERLOAD:
        assert len(calm) == len(requests)


def test_one_prompt_for_all_does_not_bring_all_to_one_worker() -> None:
    hot = [candidate(1, 0.0, 40), candidate(2, 10.0, 3), candidate(3, 10.0, 2)]
    found = choose("kv", hot, 0, random.Random(0))
    assert found.instance in (2, 3)
    assert "overloaded" in found.rule


@pytest.mark.parametrize("name", ["round-robin", "round_robin", "Round_Robin", "random", "KV", "least_loaded"])
def test_modes_by_name(name: str) -> None:
    assert mode_of(name) == name.lower().replace("_", "-")


def test_an_unknown_mode_lists_the_known() -> None:
    with pytest.raises(UserError, match="unknown router mode 'best'") as caught:
        mode_of("best")
    assert all(mode in caught.value.line() for mode in NAMES)


def test_a_session_stays_where_it_was_unless_others_are_much_freer() -> None:
    source = random.Random(0)
    some = [candidate(1, requests=3), candidate(2, requests=2), candidate(3, requests=2)]
    assert choose("least-loaded", some, 0, source, sticky=1) == (1, "the session's last worker", ())
    overloaded = [candidate(1, requests=40), candidate(2, requests=2), candidate(3, requests=2)]
    assert choose("least-loaded", overloaded, 0, source, sticky=1).instance != 1
    equal = [candidate(1, 2.0), candidate(2, 2.0), candidate(3, 2.0)]
    assert {choose("kv", equal, 0, source, sticky=2).instance for _ in range(20)} == {2}
    assert choose("kv", [candidate(1, 2.0), candidate(2, 1.0)], 0, source, sticky=1).instance == 2, "the cost decides"
    assert choose("direct", some, 0, source, sticky=3).instance == 1


def test_sessions_are_remembered_and_bounded() -> None:
    live = [Instance("n", "c", "e", number, {}) for number in range(4)]
    made = router("random", random.Random(2))
    asked = Prompt("r", 9, (), session="mine")
    first = made.decide(asked, live)
    assert first is not None
    made.started("a", first, asked)
    assert {made.decide(asked, live).chosen for _ in range(20)} == {first.chosen}  # type: ignore[union-attr]
    for number in range(SESSIONS):
        other = Prompt("r", 9, (), session=str(number))
        made.started("b", first, other)
    assert "mine" not in made._sessions
    assert len(made._sessions) == SESSIONS
