"""Blocks that a real engine has stored, for another one: the same bits from its device, its memory and its files."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.kvcache.hashes import block_hashes
from dynamod.message.worker import Generate

from .exchange import SIZE, Engines, asked, heard, noise, put
from .test_tiers import BLOCKS, CELLS, LONG, evict

pytestmark = pytest.mark.engine


@pytest.fixture
async def engines(words: Any) -> AsyncIterator[Engines]:
    made = Engines(words)
    yield made
    await made.close()


class Given:
    """What an export of stored blocks puts."""

    def __init__(self, engine: LlamaCpp, request: Generate, stop_after: int = 10**6) -> None:
        self.blocks: list[tuple[int, bytes]] = []
        self.ends: list[Exception | None] = []
        self._stop_after = stop_after
        self.cancel = engine.export_stored(request, self._put, self.ends.append)

    def _put(self, name: int, data: bytes) -> None:
        assert not self.ends
        self.blocks.append((name, data))
        if len(self.blocks) == self._stop_after:
            self.cancel()

    async def wait(self) -> list[tuple[int, bytes]]:
        async with asyncio.timeout(30):
            while not self.ends:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert self.ends == [None]
        return self.blocks


async def answer(engines: Engines, engine: LlamaCpp, request: Generate) -> Any:
    return heard(await engines.ask(engine, request).wait())


@pytest.mark.parametrize("where", ["device", "host", "disk"])
async def test_a_prefix_that_only_another_worker_has_comes_with_the_same_bits(
    engines: Engines, words: Any, tmp_path: Path, where: str
) -> None:
    tiers: dict[str, Any] = {"host": {"kv_host_gb": 0.1}, "disk": {"kv_disk_gb": 0.1, "kv_disk_path": str(tmp_path)}}
    peer = await engines.start(**CELLS, kv_offload_after=1, **tiers.get(where, {}))
    other = await engines.start(**CELLS)
    request = asked(noise(1, LONG), temperature=1.3, seed=7)
    wanted = await answer(engines, peer, request)
    names = block_hashes(request.token_ids, SIZE)
    if where != "device":
        await words.until(lambda: peer.tiers is not None and peer.tiers.found(names) == len(names))
        await evict(engines, peer)
        assert peer._cells.prefix(names, LONG) < BLOCKS
    await engines.idle(peer)
    before = peer.statistics().computed_total
    blocks = await Given(peer, request).wait()
    assert [name for name, _ in blocks] == names[:BLOCKS]
    assert (peer.statistics().computed_total, peer.statistics().exported_blocks >= BLOCKS) == (before, True)
    held, sink = engines.hold(other, request)
    assert put(held, blocks)
    held.go()
    assert heard(await sink.wait()) == wanted
    await engines.idle(other)
    assert other.statistics().imported_blocks == BLOCKS
    assert other.statistics().computed_total < 2 * SIZE + 13, "the end of the prompt, and the answer"
    for engine in engines.all:
        await engines.idle(engine)


async def test_blocks_in_the_device_and_behind_them_in_a_tier(engines: Engines, words: Any) -> None:
    peer = await engines.start(**CELLS, kv_offload_after=1, kv_host_gb=0.1)
    request = asked(noise(1, LONG), answer=2)
    await answer(engines, peer, request)
    names = block_hashes(request.token_ids, SIZE)
    await words.until(lambda: peer.tiers is not None and peer.tiers.found(names) == len(names))
    await answer(engines, peer, asked(noise(5, 900), answer=2))
    here = peer._cells.prefix(names, LONG)
    assert 0 < here < BLOCKS
    assert [name for name, _ in await Given(peer, request).wait()] == names[:BLOCKS]


async def test_answers_go_on_beside_it_and_what_is_not_there_is_not_given(engines: Engines) -> None:
    peer, alone = await engines.start(**CELLS), await engines.start(**CELLS)
    known, running = noise(1, 700), asked(noise(2, 30), answer=300)
    await answer(engines, peer, asked(known, answer=2))
    sink = engines.ask(peer, running)
    exports = [Given(peer, asked([*known[:count], *noise(3, 50)])) for count in (0, 100, 500, 700)]
    stopped = Given(peer, asked(known), stop_after=3)
    counts = [len(await export.wait()) for export in exports]
    assert counts == [0, 6, 31, 43]
    assert heard(await sink.wait()) == await answer(engines, alone, running)
    assert (len(stopped.blocks), stopped.ends) == (3, [])
    await engines.idle(peer)


async def test_blocks_that_leave_the_device_meanwhile_are_the_end(engines: Engines, words: Any) -> None:
    peer = await engines.start(**CELLS)
    request = asked(noise(1, LONG), answer=2)
    await answer(engines, peer, request)
    busy = engines.ask(peer, asked(noise(2, 30), answer=200))
    await words.until(lambda: len(busy.ids) > 3)
    export = Given(peer, request)
    peer._cells.pool.shrink(0)
    blocks = await export.wait()
    names = block_hashes(request.token_ids, SIZE)
    assert [name for name, _ in blocks] == names[: len(blocks)]
    assert len(blocks) < BLOCKS
    await busy.wait()
    await engines.idle(peer)


async def test_statistics_while_the_model_is_being_loaded(engines: Engines) -> None:
    """Heartbeats look at them: a load takes longer than a heartbeat."""
    starts = asyncio.ensure_future(engines.start(**CELLS))
    while not engines.all:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (engines.all[0].statistics().prefill_ms, engines.all[0].load().running) == (0.0, 0)
    assert (await starts).statistics().prefill_ms > 0


async def test_the_engine_rests_when_a_reader_has_left(engines: Engines, words: Any) -> None:
    peer = await engines.start(**CELLS)
    request = asked(noise(1, LONG), answer=2)
    await answer(engines, peer, request)
    await engines.idle(peer)
    assert peer._steps.stored is not None
    peer._steps.stored.ranges.export_seconds = 0.04  # so that a step has one block, and there is always more to do
    stopped = Given(peer, request, stop_after=1)
    await words.until(lambda: stopped.blocks)
    await asyncio.sleep(0.2)
    assert not peer._steps._transfers
    assert not peer._steps.stored.open


async def test_readers_take_turns(engines: Engines) -> None:
    """Each of them waits a second for a block, and not until another one has all."""
    peer = await engines.start(**CELLS)
    request = asked(noise(1, 700), answer=2)
    await answer(engines, peer, request)
    await engines.idle(peer)
    assert peer._steps.stored is not None
    order: list[int] = []
    ends: list[Exception | None] = []
    for number in range(3):
        peer.export_stored(request, lambda _name, _data, number=number: order.append(number), ends.append)
    peer._steps.stored.ranges.export_seconds = 0.06
    async with asyncio.timeout(30):
        while len(ends) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert set(order[:5]) == {0, 1, 2}
    assert [order.count(number) for number in range(3)] == [43] * 3
