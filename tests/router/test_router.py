"""The router of one model: terms, records, and an account that is empty when nothing is under way."""

import random
from typing import Any

import hypothesis.strategies as st
import msgspec
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
    WorkerEvent,
    pack,
    unpack,
)
from dynamod.router.cost import ORIGINAL, Sending, Terms, Weights, Workers, applied, terms_of, totals
from dynamod.router.decision import Decision, DecisionLog
from dynamod.router.router import Prompt, Router, RouterSettings

SIZE = 4
WORKERS = [Instance("n", "c", "e", number, {}) for number in (1, 2, 3)]


def make(**settings: Any) -> Router:
    clock = iter(range(10**9)).__next__
    return Router("m", SIZE, RouterSettings(**{"mode": "kv", **settings}), random.Random(0), clock, lambda: 1.5e9)


def prompt(*local: int, tail: int = 1, **more: Any) -> Prompt:
    return Prompt(more.pop("request", "r"), len(local) * SIZE + tail, chain(local), **more)


def holds(*local: int) -> Snapshot:
    blocks = tuple(chain(local))
    return Snapshot(blocks, blocks)


def decide(router: Router, asked: Prompt, tried: Any = ()) -> Decision:
    decision = router.decide(asked, WORKERS, tried)
    assert decision is not None
    return decision


def test_a_prompt_goes_where_its_prefix_is() -> None:
    router = make()
    router.state.apply(2, (holds(1, 2, 3),))
    router.state.apply(1, (holds(1),))
    decision = decide(router, prompt(1, 2, 3, 4))
    assert decision.chosen == 2
    assert (decision.overlap, decision.regret, decision.rule) == (3, 0, "lowest total")
    assert {one.instance: one.overlap for one in decision.candidates} == {1: 1, 2: 3, 3: 0}
    router.state.apply(2, (Removed(tuple(chain([1, 2, 3]))),))
    assert decide(router, prompt(1, 2, 3, 4)).chosen == 1
    router.state.forget(1)
    assert {one.overlap for one in decide(router, prompt(1, 2, 3, 4)).candidates} == {0}


def test_terms_of_a_candidate() -> None:
    router = make()
    router.state.apply(1, (holds(1, 2), Load(0, 0, 0, 4, 0.0)))
    first = prompt(1, 2, 9)
    router.started("a", decide(router, first), first)
    router.state.apply(1, (RequestStarted(7, tuple(chain([5, 6])), 6),))
    second = decide(router, prompt(1, 2, 3, 4, tail=2))
    terms = next(one.terms for one in second.candidates if one.instance == 1)
    assert terms == Terms(
        prefill=2.5,  # 18 tokens, 8 of them cached
        queued=(5 + 6) / SIZE,  # 13 - 8 of ours, 6 that the worker told of
        active=(5 + 2) + 5 - 2,  # 5 blocks and 2 partial ones, and ours, of which 2 are in use there
        evicted=2 + 5 - 2 - 4,  # cached, and ours that are not, above 4
        interference=2.5 * 2,
    )
    router.prefill_completed("a")
    router.state.apply(1, (PrefillCompleted(7),))
    again = decide(router, prompt(1, 2, 3, 4, tail=2))
    assert next(one.terms.queued for one in again.candidates if one.instance == 1) == 0


def test_the_originals_formula_is_one_setting() -> None:
    """One worker with these terms: prefill 2.5, queued 3, active 4 and 3 of the prompt, evicted 9, interference 2.5."""
    one = Workers([1], {1: 0}, [1], [3.0], [4], [6])
    to = Sending(one, 2.5, 3, [0], [4])

    def total(weights: Any, overlap_weight: float = 1.0) -> float:
        (found,) = totals(to, applied(weights, overlap_weight))
        return found

    assert terms_of(to) == [Terms(2.5, 3.0, 7.0, 9.0, 2.5)]
    assert total(ORIGINAL) == 2.5 + 3.0 + 7.0
    assert total(ORIGINAL, 2.0) == 2 * (2.5 + 3.0) + 7.0
    assert total(Weights(), 0.0) == Weights().active * 7.0
    assert total(Weights(active=0.0), 0.0) == 7.0, "weight 0 for prompts leaves pure balancing"
    assert total(Weights(0.0, 0.0, 0.0, 0.0, 0.0)) == 0.0


def test_overlap_weight_0_balances_active_blocks() -> None:
    router = make(overlap_weight=0.0)
    router.state.apply(1, (holds(1, 2, 3),))
    router.state.apply(1, (RequestStarted(1, tuple(chain([7, 8])), 0),))
    router.state.apply(2, (RequestStarted(1, tuple(chain([7])), 0),))
    router.state.apply(3, (RequestStarted(1, tuple(chain([7, 8, 9])), 0),))
    assert decide(router, prompt(1, 2, 3)).chosen == 2
    assert decide(router, prompt(1, 2, 3, overlap_weight=5.0)).chosen == 1, "a request may say otherwise"


def test_who_cannot_take_it_is_named() -> None:
    router = make()
    live = WORKERS[:2]
    decision = router.decide(prompt(1), live, {1})
    assert decision is not None
    assert decision.chosen == 2
    assert decision.excluded == ((1, "tried already"),)
    assert decision.rule == "the only candidate"
    asked = router.decide(prompt(1, instance=1), live)
    assert asked is not None
    assert (asked.chosen, asked.rule) == (1, "asked for by its id")
    assert router.decide(prompt(1, instance=3), live) is None


def test_without_events_what_was_sent_is_taken_to_be_there() -> None:
    router = make(kv_events=False)
    router.state.apply(1, (holds(1, 2, 3),))
    asked = prompt(1, 2, 3)
    first = decide(router, asked)
    assert first.overlap == 0, "events are off"
    router.started("a", first, asked)
    router.finished("a")
    assert decide(router, asked).chosen == first.chosen
    assert decide(router, asked).overlap == 3


def test_a_snapshot_begins_anew() -> None:
    router = make()
    router.state.apply(1, (holds(1, 2),))
    router.state.apply(1, (Cleared(), holds(3)))
    assert decide(router, prompt(1, 2)).overlap == 0
    assert decide(router, prompt(3)).overlap == 1


def test_a_new_feed_ends_what_the_old_one_told() -> None:
    """The words that would have ended it are lost; what was sent from here is not the worker's to tell."""
    router = make()
    asked = prompt(5)
    router.started("own", decide(router, asked), asked)
    own = decide(router, asked).chosen
    router.state.apply(own, (Cleared(), RequestStarted(1, (), 8), RequestStarted(2, (), 8)), snapshot=True)
    assert router.state.active.of(own).requests == 3
    router.state.apply(own, (Cleared(), holds(1)))
    assert router.state.active.of(own).requests == 3, "an empty cache ends no request"
    router.state.apply(own, (Cleared(), RequestStarted(2, (), 8)), snapshot=True)
    assert router.state.active.of(own).requests == 2
    router.state.apply(own, (RequestFinished(2),))
    router.finished("own")
    assert len(router.state.active) == 0


def test_a_shadow_is_scored_and_never_acted_on() -> None:
    router = make(mode="round-robin", shadow_mode="kv")
    router.state.apply(2, (holds(1, 2, 3),))
    decisions = [decide(router, prompt(1, 2, 3)) for _ in range(3)]
    assert [one.chosen for one in decisions] == [1, 2, 3]
    assert [one.shadow for one in decisions] == [2, 2, 2]
    assert router.statistics().shadow_differs == 2
    assert router.statistics().regret == 6


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["begin", "computed", "end", "news"])), max_size=60))
def test_the_account_is_empty_when_nothing_is_under_way(steps: list[tuple[int, str]]) -> None:
    router = make()
    told: set[int] = set()
    for key, what in steps:
        asked = prompt(1, 2 + key, request=f"r{key}")
        if what == "begin":
            router.started(key, decide(router, asked), asked)
        elif what == "computed":
            router.prefill_completed(key)
        elif what == "end":
            router.finished(key)
        else:
            router.state.apply(1 + key % 3, (RequestStarted(key, tuple(asked.blocks), 4),))
            told.add(key)
    for key in range(10):
        router.finished(key)
    for key in told:
        router.state.apply(1 + key % 3, (PrefillCompleted(key), RequestFinished(key)))
    assert router.statistics().active == 0
    assert all(router.state.active.of(worker.instance_id) == (0, 0, 0) for worker in WORKERS)


def test_decisions_are_kept_for_a_while() -> None:
    router, log = make(), DecisionLog(capacity=2)
    for name in ("a", "a", "b", "c"):
        log.add(decide(router, prompt(1, request=name)))
    assert [len(log.of(name)) for name in ("a", "b", "c")] == [0, 1, 1]
    shown = msgspec.to_builtins(log.of("c")[0])
    assert shown["candidates"][0]["terms"]["prefill"] == 1.25
    assert shown["weights"]["queued"] == 0.5


def test_decisions_for_all_choices_stand_under_the_clients_request() -> None:
    router, log = make(), DecisionLog(capacity=2)
    for name in ("a#0", "a#1", "b#", "c#x"):
        log.add(decide(router, prompt(1, request=name)))
    assert [decision.request for decision in log.of("c#x")] == ["c#x"]
    log.add(decide(router, prompt(1, request="a#1")))
    log.add(decide(router, prompt(1, request="a#0")))
    assert [decision.request for decision in log.of("a")] == ["a#1", "a#0"]
    assert log.of("a#0") == log.of("a")


def test_words_of_a_feed_survive_the_wire() -> None:
    words: tuple[WorkerEvent, ...] = (
        Cleared(),
        holds(1, 2),
        Load(1, 2, 3, 4, 0.5),
        RequestStarted(1, (2,), 3),
        RequestFinished(1),
    )
    assert unpack(pack(words)) == words
