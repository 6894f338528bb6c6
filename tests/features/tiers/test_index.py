"""Blocks in tiers below the devices: what routers know of them, and what they make of it."""

import random
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from dynamod.features.tiers.index import UNKNOWN, TierIndex
from dynamod.kvcache.hashes import chain
from dynamod.message.discovery import Instance
from dynamod.message.kv_events import (
    Cleared,
    Load,
    Removed,
    Snapshot,
    TierRemoved,
    TierStored,
    WorkerEvent,
    pack,
    unpack,
)
from dynamod.router.cost import TERMS
from dynamod.router.decision import Candidate, Decision
from dynamod.router.index import BlockIndex
from dynamod.router.overlap import Fetch
from dynamod.router.router import Prompt, Router, RouterSettings

SIZE = 4
WORKERS = [Instance("n", "c", "e", number, {}) for number in (1, 2, 3)]
BLOCKS = tuple(chain(range(10)))
MEASURED = Load(0, 0, 0, 1000, 0.0, prefill_ms=10.0, host_ms=1.0, disk_ms=4.0)


def make(**settings: Any) -> Router:
    made = RouterSettings(**{"mode": "kv", **settings})
    return Router("m", SIZE, made, random.Random(0), lambda: 0.0, lambda: 1.5e9, sources=[TierIndex])


def decide(router: Router, count: int = 10) -> Decision:
    decision = router.decide(Prompt("r", count * SIZE + 1, BLOCKS[:count]), WORKERS)
    assert decision is not None
    return decision


def of(decision: Decision, worker: int) -> tuple[Candidate, dict[str, float]]:
    found = next(one for one in decision.candidates if one.instance == worker)
    return found, msgspec.structs.asdict(found.terms)  # type: ignore[arg-type]


def held(*places: int) -> Snapshot:
    names = tuple(BLOCKS[place] for place in places)
    return Snapshot(names, names)


def host(*places: int) -> TierStored:
    return TierStored("CPU_PINNED", tuple(BLOCKS[place] for place in places))


def disk(*places: int) -> TierStored:
    return TierStored("DISK", tuple(BLOCKS[place] for place in places))


def test_events_are_packed() -> None:
    events: tuple[WorkerEvent, ...] = (host(1, 2), TierRemoved("DISK", BLOCKS[:1]), MEASURED)
    assert unpack(pack(events)) == events


def test_a_prompt_goes_to_the_device_before_the_host_before_the_disk_before_nothing() -> None:
    router = make()
    for worker in (1, 2, 3):
        router.state.apply(worker, (Cleared(), held(), MEASURED))
    assert decide(router).fetched == 0
    router.state.apply(3, (disk(*range(10)),))
    assert decide(router).chosen == 3
    router.state.apply(2, (host(*range(10)),))
    assert decide(router).chosen == 2
    router.state.apply(1, (held(*range(10)),))
    assert decide(router).chosen == 1
    router.state.apply(1, (Removed(BLOCKS),))
    router.state.apply(2, (TierRemoved("CPU_PINNED", BLOCKS),))
    decision = decide(router)
    assert (decision.chosen, decision.overlap, decision.fetched) == (3, 0, 10)
    candidate, terms = of(decision, 3)
    assert (terms["prefill"], terms["fetch"]) == (0.25, 4.0)
    assert candidate.total == pytest.approx(0.25 + 4.0 + 0.05 * 11)
    router.state.apply(3, (Cleared(),))
    assert decide(router).fetched == 0


def test_what_would_be_loaded_is_no_prefill_at_the_worker() -> None:
    router = make()
    router.state.apply(1, (held(0, 1), host(0, 1, 2, 3, 4), MEASURED))
    prompt = Prompt("r", 41, BLOCKS)
    decision = decide(router)
    assert (decision.chosen, decision.overlap, decision.fetched) == (1, 2, 3)
    router.started("a", decision, prompt)
    assert router.state.active.of(1).prefill == 41 - 5 * SIZE
    candidate, terms = of(decision, 1)
    assert terms["prefill"] == 41 / SIZE - 5
    assert terms["fetch"] == pytest.approx(3 * 0.1)
    assert candidate.fetched == 3


def test_what_takes_longer_to_load_than_to_compute_costs_as_much() -> None:
    router = make()
    router.state.apply(1, (held(), host(*range(10)), Load(0, 0, 0, 99, 0.0, 1.0, 5.0, 9.0)))
    assert of(decide(router), 1)[1]["fetch"] == 10
    router.state.apply(1, (Load(0, 0, 0, 99, 0.0, 1.0),))
    assert of(decide(router), 1)[1]["fetch"] == pytest.approx(10 * UNKNOWN["CPU_PINNED"])


def test_without_events_nothing_is_known_and_a_worker_that_is_gone_is_forgotten() -> None:
    router = make(kv_events=False)
    router.state.apply(1, (held(0), host(0, 1)))
    assert decide(router).fetched == 0
    router = make()
    router.state.apply(1, (held(), host(*range(10))))
    router.state.apply(2, (held(), host(0)))
    router.state.forget(1)
    assert {one.instance: one.fetched for one in decide(router).candidates} == {1: 0, 2: 1, 3: 0}
    router.state.apply(4, (held(0, 1),))
    assert router.state.fetches(BLOCKS, router.state.overlaps(BLOCKS)) == {2: Fetch(1, 0.25)}, "a bit is used again"


_EVENT = st.tuples(
    st.integers(1, 4), st.sampled_from(["device", "CPU_PINNED", "DISK"]), st.integers(0, 9), st.booleans()
)


@given(st.lists(_EVENT, max_size=60), st.integers(0, 10))
def test_what_each_worker_would_load(events: list[tuple[int, str, int, bool]], count: int) -> None:
    """Against sets of blocks."""
    index = BlockIndex()
    tiers = TierIndex(index)
    model: dict[tuple[int, str], set[int]] = {(worker, one): set() for worker in range(1, 5) for one in _MEDIA}
    for worker, medium, place, stored in events:
        names = (BLOCKS[place],)
        if medium == "device":
            index.apply(worker, Snapshot(names, names) if stored else Removed(names))
        else:
            tiers.apply(worker, TierStored(medium, names) if stored else TierRemoved(medium, names))  # type: ignore[arg-type]
        (model[worker, medium].add if stored else model[worker, medium].discard)(place)
    found = tiers.find(BLOCKS[:count], index.find(BLOCKS[:count]), {})
    for worker in range(1, 5):
        wanted, cost, known = [], 0.0, set[int]()
        for medium in _MEDIA:
            known |= model[worker, medium]
            wanted.append(next((place for place in range(count) if place not in known), count))
        cost = (wanted[1] - wanted[0]) * UNKNOWN["CPU_PINNED"] + (wanted[2] - wanted[1]) * UNKNOWN["DISK"]
        assert found.get(worker, Fetch(0, 0.0)) == (wanted[2] - wanted[0], pytest.approx(cost))


_MEDIA = ("device", "CPU_PINNED", "DISK")


def test_the_term_has_a_weight() -> None:
    assert list(TERMS)[-1] == "fetch"
    router = make()
    router.state.apply(1, (held(), host(*range(10)), MEASURED))
    decision = router.decide(Prompt("r", 41, BLOCKS, overlap_weight=0.0), WORKERS)
    assert decision is not None
    assert len({one.total for one in decision.candidates}) == 1, "pure balancing"
