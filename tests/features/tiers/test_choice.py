"""Whether blocks of a prompt are read from another worker, and from which."""

from collections.abc import Collection
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.features.prefill.decision import MOVE
from dynamod.features.tiers.choice import UNKNOWN, PeerDecision, Pool, Stored, costs, name_peer
from dynamod.features.tiers.index import TierIndex
from dynamod.kvcache.hashes import chain
from dynamod.message.kv_events import Load, Snapshot, TierStored, WorkerEvent
from dynamod.router.overlap import Fetch
from dynamod.router.settings import RouterSettings
from dynamod.router.state import WorkerState

SIZE = 16
BLOCKS = tuple(chain(range(200)))
FAST = Load(0, 0, 0, 1000, 0.0, prefill_ms=10.0, host_ms=1.0, disk_ms=4.0, peer_ms=1.0)


def known(**workers: Any) -> WorkerState:
    """`w3=(10, 5)`: worker 3 has ten blocks in its device, and five behind these in memory."""
    state = WorkerState(RouterSettings("kv"), SIZE, lambda: 0.0, [TierIndex])
    state.apply(1, (FAST,))
    for name, (device, below) in workers.items():
        names, behind = BLOCKS[:device], BLOCKS[device : device + below]
        events: list[WorkerEvent] = [Snapshot(names, names)]
        if below:
            events.append(TierStored("CPU_PINNED", behind))
        state.apply(int(name[1:]), [*events, FAST])
    return state


def named(
    state: WorkerState, chosen: int = 1, count: int = 100, tried: Collection[int] = (), **pools: WorkerState
) -> PeerDecision | None:
    found = [Pool("", range(1, 9), state), *(Pool(name, range(11, 19), one) for name, one in pools.items())]
    return name_peer(BLOCKS[:count], count * SIZE + 1, chosen, state, found, tried, MOVE)


def test_the_worker_that_has_most_is_named_and_read_where_that_costs_less() -> None:
    found = named(known(w2=(40, 0), w3=(60, 20), w4=(70, 0)))
    assert found is not None
    assert (found.fetch, found.instance, found.pool, found.blocks, found.own) == (True, 3, "", 80, 0)
    assert found.here == 80 * SIZE
    assert found.there == pytest.approx(80 * SIZE * 0.1 + 20 * SIZE * 0.1 + MOVE), "sent, and 20 of them loaded before"
    assert found.rule == f"it costs {found.there:.0f} tokens to read them, 1280 without"


def test_blocks_of_the_answering_worker_and_its_tiers_count() -> None:
    found = named(known(w1=(30, 30), w2=(80, 0)))
    assert found is not None
    assert (found.fetch, found.own, found.here) == (False, 60, pytest.approx((20 + 30 * 0.1) * SIZE))
    assert named(known(w1=(30, 50), w2=(80, 0))) is None, "nobody has more"
    assert named(known(w1=(30, 0))) is None


def test_a_worker_with_as_much_in_its_device_is_taken_before_one_that_has_to_load_it() -> None:
    found = named(known(w2=(80, 0), w7=(10, 70)))
    assert found is not None
    assert found.instance == 2
    state = known(w2=(80, 0), w3=(80, 0))
    state.active.start("r", 3, (), 0, 0.0)
    found = named(state)
    assert found is not None
    assert found.instance == 2, "it has less to do"


def test_workers_that_are_gone_or_were_tried_are_not_read_from() -> None:
    state = known(w2=(80, 0), w9=(90, 0), w3=(70, 0))
    for tried, instance in (((), 2), ((2,), 3)):
        found = named(state, tried=tried)
        assert found is not None
        assert found.instance == instance
    assert named(state, tried=(2, 3)) is None


def test_a_prefill_worker_is_read_from_too() -> None:
    found = named(known(w2=(40, 0)), prefill=known(w12=(90, 0)))
    assert found is not None
    assert (found.instance, found.pool, found.blocks) == (12, "prefill", 90)


def test_short_prompts_are_not_looked_at() -> None:
    state = known(w2=(100, 0))
    assert name_peer(BLOCKS, MOVE, 1, state, [Pool("", {2}, state)], (), MOVE) is None
    found = named(state, count=40)
    assert found is not None
    assert found.fetch, "640 tokens by measured times"
    assert named(state, count=MOVE // SIZE) is None


def test_times_that_nobody_has_measured() -> None:
    for load in (
        None,
        Load(0, 0, 0, 0, 0.0),
        Load(0, 0, 0, 0, 0.0, peer_ms=1.0),
        Load(0, 0, 0, 0, 0.0, prefill_ms=9.0),
    ):
        assert costs(Stored(0), Stored(100), SIZE, load, MOVE) == (1600, 1600 * UNKNOWN + MOVE)


def test_lost_time_keeps_a_worker_from_reading() -> None:
    slow = Load(0, 0, 0, 0, 0.0, prefill_ms=1.0, peer_ms=1000.0)
    here, there = costs(Stored(0), Stored(1000), SIZE, slow, MOVE)
    assert there > here


blocks = st.integers(0, 3000)
stored = st.builds(Stored, blocks, st.builds(lambda count, share: Fetch(count, count * share), blocks, st.floats(0, 1)))
times = st.one_of(st.just(0.0), st.floats(1e-4, 1e4))


@given(stored, stored, st.integers(1, 512), times, times)
def test_a_read_never_costs_less_than_a_move_and_pays_only_for_more(
    own: Stored, peer: Stored, size: int, prefill: float, read: float
) -> None:
    load = Load(0, 0, 0, 0, 0.0, prefill_ms=prefill, peer_ms=read)
    here, there = costs(own, peer, size, load, MOVE)
    assert there >= MOVE
    if there < here:
        assert (peer.blocks - own.device) * size > MOVE
    more = Stored(peer.device + 1, peer.tiers)
    assert costs(own, more, size, load, MOVE)[0] > here
    assert costs(Stored(own.device + 1, own.tiers), peer, size, load, MOVE)[0] < here
