"""A feature gives engines a store of KV blocks, and routers a source of overlaps: the toy `shelf`."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.cli.flags import parse
from dynamod.cli.preflight import check
from dynamod.cli.run import build
from dynamod.engine.base import EngineOptions
from dynamod.extension.installed import block_stores
from dynamod.graph.graph import Graph
from dynamod.kvcache.hashes import block_hashes, chain
from dynamod.kvcache.tier_settings import TierSettings
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.kv_events import Cleared, Load, Snapshot, TierRemoved, TierStored
from dynamod.router.index import BlockIndex
from dynamod.router.overlap import Fetch, OverlapSource
from dynamod.router.router import Prompt, RouterSettings
from dynamod.router.state import WorkerState
from tests.ingress.test_dispatcher import desk

pytestmark = pytest.mark.usefixtures("toys")

BLOCKS = tuple(chain(range(5)))
WHOLE = build(parse(["in=http", "out=mocker", "sample"]))  # with the flags of the features that are shipped


@virtual
async def test_an_engine_keeps_blocks_in_the_store_of_a_feature(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, kv_host_gb=1, num_gpu_blocks=12, host_gbps=1e-3)
        feed = house.subscribe()
        prompt = list(range(40))
        await house.ask(words.generate(prompt, max_tokens=1)).wait()
        await asyncio.sleep(0.1)
        names = block_hashes(tokens.pack(prompt), 4)
        told = [event for item in feed.news for event in item if isinstance(event, TierStored)]
        assert {name for event in told for name in event.blocks} == set(names)
        await house.ask(words.generate(list(range(100, 140)), max_tokens=1)).wait()
        again = await house.ask(words.generate(prompt, max_tokens=1)).wait()
        assert again.ids
        statistics = house.workers[-1].statistics().engine
        assert (statistics.host_tier.blocks, statistics.disk_tier) == (20, None)
        assert statistics.host_tier.loaded > 0


async def test_an_engine_without_a_feature_has_no_store(words: Any) -> None:
    with pytest.raises(UserError, match="kv_host_gb: there is no store of KV blocks here"):
        EngineOptions("m").stores("kv_host_gb")
    store = await block_stores("kv_disk_gb").open(TierSettings(kv_disk_gb=1.0), "layout", lambda _event: None)
    store.put(7, 3, b"abc")
    coming = store.load([7, 8], lambda: None)
    assert (coming.take(), coming.over, coming.take()) == ((7, b"abc"), True, None)


def stored_graph(**arguments: Any) -> Graph:
    worker = WHOLE.services["Worker"]
    worker = replace(worker, config={**worker.config, "engine_args": arguments})
    return replace(WHOLE, services={"Worker": worker})


def test_a_graph_whose_engine_would_have_no_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check(stored_graph(kv_disk_gb=1), {})
    monkeypatch.setenv("DYNAMOD_FEATURES", "-shelf")
    check(stored_graph(kv_disk_gb=0), {})
    says = "Worker.engine_args.kv_disk_gb belongs to the feature 'shelf', which is off: switched off by DYNAMOD_FEA"
    with pytest.raises(UserError, match=says):
        check(stored_graph(kv_disk_gb=1), {})
    monkeypatch.setattr("dynamod.extension.installed.installed", dict)
    monkeypatch.delenv("DYNAMOD_FEATURES")
    with pytest.raises(UserError, match="kv_host_gb needs a feature that keeps KV blocks, and none is installed"):
        check(stored_graph(kv_host_gb=1), {})


@virtual
async def test_routers_ask_the_sources_of_features() -> None:
    async with desk(2, mode="kv", busy_prefill=None) as (made, _):
        await asyncio.sleep(0)
        router = made.actor.router(("m", ""))
        assert router is not None
        prompt, instances = Prompt("r", 21, BLOCKS), made.actor.serving(("m", "")).instances
        events = (Load(0, 0, 0, 100, 0.0), Snapshot(BLOCKS[:1], BLOCKS[:1]), TierStored("DISK", BLOCKS[1:4]))
        router.state.apply(2, events)
        decision = router.decide(prompt, instances)
        assert decision is not None
        assert (decision.chosen, decision.overlap, decision.fetched) == (2, 1, 3)
        router.state.apply(2, (TierRemoved("DISK", BLOCKS), Cleared()))  # the source takes no events of the first kind
        decision = router.decide(prompt, instances)
        assert decision is not None
        assert (decision.overlap, decision.fetched) == (0, 0)


class Library:
    """A source that takes no events: all workers may borrow the first blocks."""

    events = ()

    def __init__(self, _device: BlockIndex) -> None:
        self.gone: list[int] = []

    def __bool__(self) -> bool:
        return True

    def apply(self, worker: int, event: Any) -> None:
        raise AssertionError("no event is for this source")

    def remove_worker(self, worker: int) -> None:
        self.gone.append(worker)

    def find(self, blocks: Any, overlaps: Any, loads: Any) -> dict[int, Fetch]:
        return {worker: Fetch(min(2, len(blocks)), 2.0) for worker in (1, 2)}


def test_of_several_sources_the_one_with_most_blocks_counts() -> None:
    from dynamod.features.shelf.blocks import ShelfIndex  # type: ignore[import-not-found]

    state = WorkerState(RouterSettings("kv"), 4, lambda: 0.0, [Library, ShelfIndex])
    assert state.fetches(BLOCKS, {}) == {1: Fetch(2, 2.0), 2: Fetch(2, 2.0)}
    state.apply(1, (TierStored("DISK", BLOCKS[:2]),))
    state.apply(2, (TierStored("DISK", BLOCKS[:1]),))
    state.apply(3, (TierStored("DISK", BLOCKS[:1]),))
    assert state.fetches(BLOCKS, {}) == {1: Fetch(2, 0.2), 2: Fetch(2, 2.0), 3: Fetch(1, 0.1)}
    assert state.fetches((), {}) == {}
    state.forget(3)
    library: OverlapSource = state.sources[0]
    assert isinstance(library, Library)
    assert library.gone == [3]
