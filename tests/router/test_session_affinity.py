"""Hard sessions: several routers agree without talking, and only the sessions of a dead worker move."""

import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.discovery import Instance
from dynamod.router.policies import session_affinity
from dynamod.router.policies.session_affinity import SessionAffinity, rendezvous
from dynamod.router.router import Prompt, Router, RouterSettings

ids = st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=12, unique=True)
names = st.text(min_size=1, max_size=20)


def make(seed: int = 0, **settings: Any) -> Router:
    return Router(
        "m", 4, RouterSettings("session-affinity", **settings), random.Random(seed), lambda: 1.0, lambda: 1.5e9
    )


def instances(numbers: Sequence[int]) -> tuple[Instance, ...]:
    return tuple(Instance("n", "c", "e", number, {}) for number in numbers)


def chosen(router: Router, session: str, live: Sequence[int], tried: Collection[int] = ()) -> int | None:
    decision = router.decide(Prompt("r", 9, (1, 2), session=session), instances(live), tried)
    return decision.chosen if decision is not None else None


@given(names, ids, st.integers(), st.integers(), st.randoms(use_true_random=False), st.data())
def test_routers_agree_whatever_they_have_seen(
    session: str, live: list[int], one: int, two: int, shuffling: random.Random, data: st.DataObject
) -> None:
    first, second = make(one), make(two)
    for number in data.draw(st.lists(st.integers(0, 99), max_size=5)):
        asked = Prompt("other", 9, (1, 3), session=str(number))
        decision = second.decide(asked, instances(live))
        assert decision is not None
        second.started(object(), decision, asked)
    found = chosen(first, session, live)
    assert found in live
    shuffling.shuffle(live)
    assert chosen(second, session, live) == found
    tried = set(data.draw(st.lists(st.sampled_from(live), max_size=3)))
    again = chosen(first, session, live, tried)
    assert again == chosen(second, session, live, tried)
    assert (again is None) == (tried >= set(live))
    assert again not in tried
    assert chosen(first, session, live) == found, "a retry elsewhere moves no session"


@given(st.lists(names, min_size=1, max_size=20, unique=True), ids, st.data())
def test_only_the_sessions_of_who_leaves_move(sessions: list[str], live: list[int], data: st.DataObject) -> None:
    router = make()
    before = {session: chosen(router, session, live) for session in sessions}
    gone = data.draw(st.sampled_from(live))
    left = [worker for worker in live if worker != gone]
    for session in sessions:
        now = chosen(router, session, left)
        assert now == before[session] or before[session] == gone
    assert {session: chosen(router, session, live) for session in sessions} == before, "who comes back gets his again"


def test_sessions_are_spread_evenly() -> None:
    workers = [random.Random(4).getrandbits(63) for _ in range(1)] + list(range(1, 8))
    counted = Counter(rendezvous(f"session {number}", workers) for number in range(8000))
    assert set(counted) == set(workers)
    assert min(counted.values()) > 850
    assert max(counted.values()) < 1150


def test_load_does_not_move_a_session() -> None:
    router = make()
    live = list(range(1, 5))
    worker = chosen(router, "mine", live)
    assert worker is not None
    for number in range(100):
        router.state.active.start(number, worker, (), 5, 0.0)
    decision = router.decide(Prompt("r", 9, (), session="mine"), instances(live))
    assert decision is not None
    assert (decision.chosen, decision.rule) == (worker, "the session's worker")
    assert len(decision.excluded) == 3
    assert {why for _, why in decision.excluded} == {"not the session's worker"}
    assert len({chosen(router, f"{number}", live) for number in range(50)}) == 4


def test_while_its_worker_is_busy_a_session_waits() -> None:
    router = make(busy_prefill=4.0)
    live = list(range(1, 5))
    worker = chosen(router, "mine", live)
    assert worker is not None
    router.state.active.start("long", worker, (), 5, 0.0)
    assert chosen(router, "mine", live) is None
    assert chosen(router, "", live) not in (None, worker)
    router.state.active.prefill_completed("long")
    assert chosen(router, "mine", live) == worker


def test_a_request_without_a_session_goes_by_its_cost() -> None:
    router = make()
    router.state.active.start("some", 1, (), 400, 0.0)
    decision = router.decide(Prompt("r", 9, (1, 2)), instances([1, 2]))
    assert decision is not None
    assert (decision.chosen, decision.rule) == (2, "lowest total")
    assert decision.candidates[0].total > decision.candidates[1].total


def test_the_client_may_still_ask_for_a_worker() -> None:
    router = make()
    for worker in (1, 2, 3):
        decision = router.decide(Prompt("r", 9, (), instance=worker, session="mine"), instances([1, 2, 3]))
        assert decision is not None
        assert (decision.chosen, decision.rule) == (worker, "asked for by its id")


def test_what_is_remembered_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(session_affinity, "REMEMBERED", 10)
    policy, live = SessionAffinity(), [1, 2, 3]
    found = {session: policy.required(session, live) for session in map(str, range(100))}
    assert len(policy._workers) <= 10
    assert {session: policy.required(session, live) for session in found} == found
