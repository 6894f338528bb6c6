"""Data-parallel ranks of the mocker: placed by cache and load, seen as one worker from outside."""

import asyncio
import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from dynamod.actor import System
from dynamod.actor.testing import run, virtual
from dynamod.engine.base import EngineOptions
from dynamod.engine.mocker.engine import Mocker, Rank
from dynamod.message.kv_events import Cleared, Removed, Snapshot, Stored
from dynamod.router.index import BlockIndex


def ranks_of(house: Any) -> list[Rank]:
    engine = house.workers[-1]._engine
    assert isinstance(engine, Mocker)
    return engine.ranks


@virtual
async def test_requests_spread_over_ranks_and_prefixes_stay_where_they_are(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, dp_size=3, num_gpu_blocks=100)
        ranks = ranks_of(house)
        answers = [house.ask(words.generate([n] * 40, max_tokens=8)) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        assert [len(rank.scheduler.waiting) + len(rank.scheduler.running) for rank in ranks] == [1, 1, 1]
        assert house.statistics.engine.total_blocks == 300
        for answer in answers:
            await answer.wait()
        before = [rank.scheduler.cached_tokens for rank in ranks]
        for n in (3, 1, 2, 3, 3):
            await house.ask(words.generate([n] * 40, max_tokens=1)).wait()
        gained = [rank.scheduler.cached_tokens - had for rank, had in zip(ranks, before, strict=True)]
        assert sum(gained) == 5 * 40
        assert sorted(gained) == [40, 40, 120]


@virtual
async def test_ranks_step_beside_each_other(words: Any) -> None:
    """Two prompts on two ranks take the time of one."""
    async with System() as system:
        times = {}
        for size in (1, 2):
            house = await words.House(
                system,
                words.Mock,
                EngineOptions("model", arguments={"dp_size": size, "enable_prefix_caching": False}),
            ).start(f"worker{size}")
            begin = asyncio.get_running_loop().time()
            answers = [house.ask(words.generate([n] * 4000, max_tokens=1)) for n in (1, 2)]
            for answer in answers:
                await answer.wait()
            times[size] = asyncio.get_running_loop().time() - begin
        assert times[2] < times[1] * 0.75


@given(seed=st.integers(0, 2**32), size=st.integers(2, 4))
def test_the_feed_tells_of_the_union_and_no_answer_depends_on_its_rank(words: Any, seed: int, size: int) -> None:
    """Small caches, so that blocks are evicted here and stay there."""

    async def main() -> None:
        async with System() as system:
            house = await words.mocker(system, dp_size=size, num_gpu_blocks=24)
            feed = house.subscribe()
            draw = random.Random(seed)
            asked = []
            for _ in range(30):
                topic = draw.randrange(4)
                ids = [topic] * draw.randrange(4, 40)
                asked.append((ids, house.ask(words.generate(ids, max_tokens=draw.randrange(1, 12), seed=7))))
                await asyncio.sleep(draw.random() * 0.02)
            for _, answer in asked:
                await answer.wait()
            await asyncio.sleep(1)
            index = BlockIndex()
            for items in feed.news:
                for item in items:
                    if isinstance(item, Stored | Removed | Cleared | Snapshot):
                        assert index.apply(1, item)
            there = {name for rank in ranks_of(house) for name in rank.scheduler.pool.names()}
            assert {name for _, holds in index.dump() for name in holds.blocks} == there
            feed.stream.cancel()
            alone = await words.House(system, words.Mock, EngineOptions("m", arguments={"block_size": 4})).start(
                "alone"
            )
            for ids, answer in asked:
                again = await alone.ask(words.generate(ids, max_tokens=len(answer.ids), seed=7)).wait()
                assert again.ids == answer.ids

    run(main())
