"""Decisions by columns give what each worker's own sum gives, keep the best, and cost little among thousands."""

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.kvcache.hashes import chain
from dynamod.message.discovery import Instance
from dynamod.message.kv_events import (
    Cleared,
    Load,
    PrefillCompleted,
    Removed,
    RequestFinished,
    RequestStarted,
    Snapshot,
)
from dynamod.router import eligible as eligible_module
from dynamod.router import router as router_module
from dynamod.router.cost import ORIGINAL, TERMS, Terms, Weights, applied
from dynamod.router.decision import KEPT, Decision
from dynamod.router.policies import NAMES
from dynamod.router.policies.base import EQUAL, Question, overload_bound
from dynamod.router.router import Prompt, Router, RouterSettings
from dynamod.router.state import CHANGED

SIZE = 4

weights = st.sampled_from([Weights(), ORIGINAL, Weights(active=0.0), Weights(0.3, 0.7, 0.013, 0.11, 0.07)])
paths = st.builds(  # few, so that prompts share prefixes
    lambda same, tail: [0] * same + tail, st.integers(0, 12), st.lists(st.integers(0, 1), max_size=3)
)


def make(mode: Any, **more: Any) -> Router:
    now = more.pop("now", lambda: 1.0)
    return Router("m", SIZE, RouterSettings(mode, **more), random.Random(0), now, lambda: 1.5e9)


def columns(count: int) -> tuple[Instance, ...]:
    return tuple(Instance("n", "c", "e", 7 * number, {}) for number in range(count, 0, -1))


def decided(router: Router, prompt: Prompt, live: Any, tried: Any, kept: int, few: int) -> Decision | None:
    """A decision that keeps so many candidates, and counts all blocks in use up to so many workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router_module, "KEPT", kept)
        patch.setattr(eligible_module, "KEPT", kept)
        patch.setattr(eligible_module, "FEW", few)
        return router.decide(prompt, live, tried)


def both(router: Router, prompt: Prompt, live: Any, tried: Any, limit: int) -> tuple[Decision | None, Decision | None]:
    """The decision with nothing left out, and as it is made among many; chance and turns are the same for both."""
    state, turn = router._random.getstate(), router._turn
    plain = decided(router, prompt, live, tried, 10**9, 10**9)
    used = router._random.getstate()
    router._random.setstate(state)
    router._turn = turn
    many = decided(router, prompt, live, tried, limit, 2)
    assert router._random.getstate() == used
    return plain, many


def compare(plain: Decision | None, many: Decision | None, limit: int) -> None:
    assert (plain is None) == (many is None)
    if plain is None or many is None:
        return
    for name in ("chosen", "rule", "shadow", "temperature", "overlap_weight", "overlap", "regret", "weights"):
        assert getattr(many, name) == getattr(plain, name), name
    known = {one.instance: one for one in plain.candidates}
    kept = [one.instance for one in many.candidates]
    assert kept == sorted(set(kept))
    assert all(one == known[one.instance] for one in many.candidates), "scores are equal to the last bit"
    assert len(kept) + many.left_out == len(known)
    assert len(kept) == min(len(known), limit)
    assert set(many.tied) == set(plain.tied) & set(kept)
    loads = many.mode in ("least-loaded", "power-of-two") and many.weights is None
    rank = (lambda one: one.requests) if loads else (lambda one: one.total)
    last = sorted(map(rank, known.values()))[len(kept) - 1]
    assert all(rank(one) <= last for one in many.candidates if one.instance != many.chosen), "the best are kept"
    assert set(many.excluded) <= set(plain.excluded)
    assert len(many.excluded) + many.more_excluded == len(plain.excluded)


def expected(router: Router, prompt: Prompt, worker: int) -> tuple[int, int, Any]:
    """Overlap, requests and terms of one worker, straight from what is known of it."""
    state = router.state
    overlap = state.overlaps(prompt.blocks).get(worker, 0)
    load, room = state.active.of(worker), state.loads.get(worker, Load(0, 0, 0, 0, 0.0)).total_blocks
    own, whole = max(0.0, prompt.tokens / SIZE - overlap), len(prompt.blocks) + 1
    used = state.active._workers[worker].blocks if worker in state.active._workers else {}
    shared = next((place for place, block in enumerate(prompt.blocks) if block not in used), len(prompt.blocks))
    publishes = worker in state._publishing
    evicted = max(0, state.index.count(worker) + whole - overlap - room) if room and publishes else 0
    terms = Terms(own, load.prefill / SIZE, load.blocks + whole - shared, evicted, own * load.requests)
    return overlap, load.requests, terms


def check(router: Router, prompt: Prompt, decision: Decision) -> None:
    """The record has each worker's own terms and their weighted sum, and kv has taken the lowest."""
    factor = router.settings.overlap_weight if prompt.overlap_weight is None else prompt.overlap_weight
    weight = applied(router.settings.weights, factor)
    for one in decision.candidates:
        overlap, requests, terms = expected(router, prompt, one.instance)
        assert (one.overlap, one.requests) == (overlap, requests)
        total = sum(weight[name] * getattr(terms, name) for name in TERMS)
        if one.terms is not None:
            assert (one.terms, one.total) == (terms, pytest.approx(total))
        else:
            assert one.total == 0
            assert len(decision.candidates) == 1 or "kv" not in (decision.mode, decision.shadow_mode)
    if decision.mode != "kv" or len(decision.candidates) == 1 or decision.temperature > 0:
        return
    bound = overload_bound([one.requests for one in decision.candidates])
    calm = [one for one in decision.candidates if one.requests <= bound]
    lowest = min(one.total for one in calm)
    best = {one.instance for one in calm if one.total <= lowest + EQUAL}
    assert decision.chosen in best
    assert not decision.tied or set(decision.tied) == best


WHAT = [
    "holds",
    "holds",
    "removed",
    "cleared",
    "load",
    "told",
    "told",
    "computed",
    "ended",
    "begin",
    "crowd",
    "end",
    "forget",
]


@st.composite
def steps(draw: Any) -> Any:
    """Something happens at some workers in a row."""
    first = draw(st.integers(1, 24))
    workers = range(first * 7, draw(st.integers(first, 24)) * 7 + 1, 7)
    blocks = tuple(chain(draw(paths)))
    return draw(st.sampled_from(WHAT)), workers, blocks, draw(st.integers(0, 3))


@given(
    mode=st.sampled_from(NAMES),
    shadow=st.sampled_from([None, "kv", "least-loaded"]),
    cost=weights,
    busy=st.sampled_from([(None, None), (0.5, None), (None, 9.0)]),
    events=st.booleans(),
    rounds=st.lists(st.tuples(st.lists(steps(), max_size=8), paths, st.data()), min_size=1, max_size=5),
)
def test_the_columns_give_what_each_worker_gives(
    mode: Any, shadow: Any, cost: Weights, busy: Any, events: bool, rounds: Any
) -> None:
    router = make(mode, shadow_mode=shadow, weights=cost, busy_blocks=busy[0], busy_prefill=busy[1], kv_events=events)
    live = columns(24)
    for news, path, data in rounds:
        for what, workers, blocks, number in news:
            for worker in workers:
                apply(router, what, worker, blocks, number)
        if data.draw(st.booleans()):
            live = data.draw(st.permutations(live[: data.draw(st.integers(1, 24))]).map(tuple))
            live = data.draw(st.sampled_from([live, list(live)]))
        blocks = tuple(chain(path))
        prompt = Prompt(
            "r",
            len(blocks) * SIZE + data.draw(st.integers(0, 3)),
            blocks,
            overlap_weight=data.draw(st.sampled_from([None, 0.0, 2.5])),
            temperature=data.draw(st.sampled_from([None, None, 0.7])),
            session=data.draw(st.sampled_from(["", "s"])),
        )
        tried = data.draw(st.sets(st.sampled_from([7, 14, 70, 999])))
        limit = data.draw(st.sampled_from([1, 3, KEPT]))
        plain, many = both(router, prompt, live, tried, limit)
        compare(plain, many, limit)
        if plain is not None and many is not None:
            check(router, prompt, plain)
            router.started(object(), many, prompt)


def apply(router: Router, what: str, worker: int, blocks: tuple[int, ...], number: int) -> None:
    match what:
        case "holds":
            router.state.apply(worker, (Snapshot(blocks, blocks),))
        case "removed":
            router.state.apply(worker, (Removed(blocks[-1:]),))
        case "cleared":
            router.state.apply(worker, (Cleared(),), snapshot=number < 3)
        case "load":
            router.state.apply(worker, (Load(0, 0, 0, number * 2, 0.0),))
        case "told":
            router.state.apply(worker, (RequestStarted(number, blocks, number),))
        case "computed":
            router.state.apply(worker, (PrefillCompleted(number),))
        case "ended":
            router.state.apply(worker, (RequestFinished(number),))
        case "begin":
            router.state.active.start((number, worker, "own"), worker, blocks, number * 3, 0.0)
        case "crowd":
            for one in range(12):
                router.state.active.start((number, worker, one), worker, blocks, 0, 0.0)
        case "end":
            router.prefill_completed((number, worker, "own"))
            if number:
                router.finished((number, worker, "own"))
        case _:
            router.state.forget(worker)


def test_a_record_among_many_is_small_and_says_how_many_are_left_out() -> None:
    router, live = make("kv"), columns(2000)
    hot = tuple(chain([1, 2, 3]))
    router.state.apply(7 * 1500, (Snapshot(hot, hot),))
    decision = router.decide(Prompt("r", 13, hot), live, {7})
    assert decision is not None
    assert decision.chosen == 7 * 1500
    assert len(decision.candidates) == KEPT
    assert decision.left_out == 2000 - 1 - KEPT
    assert decision.excluded == ((7, "tried already"),)
    assert (decision.overlap, decision.regret) == (3, 0)
    elsewhere = router.decide(Prompt("s", 13, hot), live, {7 * 1500})
    assert elsewhere is not None
    assert "by chance among 1999 equal ones" in elsewhere.rule
    assert set(elsewhere.tied) == {one.instance for one in elsewhere.candidates}
    assert elsewhere.chosen in elsewhere.tied


def test_thousands_of_busy_workers_are_counted() -> None:
    router, live = make("kv", busy_prefill=0), columns(500)
    for one in live[1:]:
        router.state.active.start(one.instance_id, one.instance_id, (), 5, 0.0)
    decision = router.decide(Prompt("r", 4, ()), live)
    assert decision is not None
    assert (decision.chosen, decision.rule) == (live[0].instance_id, "the only candidate")
    assert (len(decision.excluded), decision.more_excluded) == (KEPT, 499 - KEPT)
    assert decision.excluded[0][1] == "busy: 5 prompt tokens to compute"
    router.state.active.start("last", live[0].instance_id, (), 5, 0.0)
    assert router.decide(Prompt("r", 4, ()), live) is None


def test_the_instance_asked_for_by_its_id_is_found_among_many() -> None:
    router, live = make("kv"), columns(300)
    decision = router.decide(Prompt("r", 4, (), instance=70), live)
    assert decision is not None
    assert (decision.chosen, decision.rule) == (70, "asked for by its id")
    assert len(decision.excluded) + decision.more_excluded == 299


def test_workers_that_come_and_go_leave_nothing() -> None:
    router = make("kv")
    for number in range(CHANGED * 2):
        router.state.apply(number, (Load(0, 0, 0, 9, 0.0), RequestStarted(1, (), 5)))
        router.state.forget(number)
    assert len(router.state.active.changed) <= CHANGED
    assert len(router.state.active) == len(router.state.loads) == 0
    router.state.apply(70, (RequestStarted(1, (), 5),))
    compare(*both(router, Prompt("r", 9, ()), columns(24), (), 3), 3)


@pytest.mark.parametrize("mode", NAMES)
def test_only_what_has_changed_is_read_again(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the instances nor all workers' rows are looked at when nothing has changed."""
    router, live = make(mode), columns(400)
    read: list[int] = []
    row = router.state._row
    monkeypatch.setattr(router.state.columns, "_read", lambda worker: (read.append(worker), row(worker))[1])
    prompt = Prompt("r", 9, tuple(chain([1, 2])))
    assert router.decide(prompt, live) is not None
    assert sorted(read) == sorted(one.instance_id for one in live)
    read.clear()
    assert router.decide(prompt, live) is not None
    assert read == []
    router.state.apply(70, (RequestStarted(1, (), 5),))
    router.state.apply(9999, (RequestStarted(1, (), 5),))
    assert router.decide(prompt, live) is not None
    assert read == [70]
    read.clear()
    assert router.decide(prompt, live[1:]) is not None
    assert router.decide(prompt, live) is not None
    assert read == [live[0].instance_id]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.data())
def test_the_best_are_kept_and_the_chosen_one(ranks: list[int], data: Any) -> None:
    ids = list(range(100, 100 + len(ranks)))
    chosen = data.draw(st.sampled_from(ids))
    asked = Question(ids, ranks, random.Random(0), lambda: ())
    kept = [ids[place] for place in make("least-loaded")._shown(asked, chosen - 100)]
    assert chosen in kept
    assert kept == sorted(set(kept))
    assert len(kept) == min(len(ids), KEPT)
    left = [rank for one, rank in zip(ids, ranks, strict=True) if one not in kept]
    assert all(rank >= ranks[one - 100] for rank in left for one in kept if one != chosen)
    assert len(make("random")._shown(asked, chosen - 100)) == len(kept)


@pytest.mark.parametrize("why", ["overloaded", "tried", "busy"])
def test_who_cannot_be_chosen_hides_nobody(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers share is counted only for those near the best; the best must be one that can be had."""
    monkeypatch.setattr(router_module, "KEPT", 1)
    monkeypatch.setattr(eligible_module, "KEPT", 1)
    monkeypatch.setattr(eligible_module, "FEW", 0)
    router = make("kv", weights=ORIGINAL, busy_prefill=5.0 if why == "busy" else None)
    prompt, other = tuple(chain(range(40))), tuple(chain(range(100, 140)))
    live = columns(20)
    best, sharer = live[0].instance_id, live[1].instance_id
    router.state.apply(best, (Snapshot(prompt, prompt),))
    for number in range(12 if why == "overloaded" else 0):
        router.state.active.start(number, best, (), 0, 0.0)
    if why == "busy":
        router.state.active.start("busy", best, (), 6, 0.0)
    router.state.active.start("same", sharer, prompt, 0, 0.0)
    for one in live[2:]:
        router.state.active.start(one.instance_id, one.instance_id, other, 0, 0.0)
    decision = router.decide(Prompt("r", 40 * SIZE + 1, prompt), live, {best} if why == "tried" else ())
    assert decision is not None
    assert decision.chosen == sharer
    assert decision.candidates[0].terms.active == 42
