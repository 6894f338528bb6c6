"""The mocker gives other workers blocks that it has, and computes nothing for that. Virtual time."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from dynamod.actor import System
from dynamod.actor.testing import run, virtual
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.mocker.handoff import content
from dynamod.features.prefill.handoff import FORGET, PATIENCE, HandoffEndpoint
from dynamod.features.prefill.transfer.base import Block, TransferError
from dynamod.kvcache.hashes import block_hashes
from dynamod.message.ingress import Accepted, Failed
from dynamod.message.worker import Generate, Handoff
from dynamod.transport.base import Reply

from .test_mocker_handoff import SIZE, Outbox, answered, engine_of


class Given:
    """What an export of stored blocks puts."""

    def __init__(self, engine: Mocker, request: Generate) -> None:
        self.blocks: list[int] = []
        self.over = asyncio.Event()
        self._size = SIZE * engine.arguments.kv_bytes_per_token
        self.cancel = engine.export_stored(request, self._put, lambda _error: self.over.set())

    def _put(self, name: int, data: bytes) -> None:
        assert data == content(name, self._size)
        assert not self.over.is_set()
        self.blocks.append(name)


async def ask(engine: Mocker, request: Generate) -> None:
    outbox = Outbox()
    engine.submit(request, Reply(outbox, 1))
    await answered(outbox)


@given(warm=st.integers(0, 40), length=st.integers(1, 60), same=st.integers(0, 60), dp=st.sampled_from((1, 3)))
def test_what_the_cache_has_from_the_start_is_given_and_nothing_computed(
    words: Any, warm: int, length: int, same: int, dp: int
) -> None:
    async def main() -> None:
        async with System() as system:
            engine = engine_of(await words.mocker(system, num_gpu_blocks=64, dp_size=dp))
            known = list(range(100, 100 + warm))
            if warm:
                await ask(engine, words.generate(known, max_tokens=1))
            request = words.generate([*known[:same], *range(length)][:length], max_tokens=1)
            steps = engine.statistics().steps
            exported = Given(engine, request)
            assert exported.over.is_set()
            names = block_hashes(request.token_ids[:-4], SIZE)
            common = min(warm, same, length - 1) // SIZE
            assert exported.blocks == names[:common]
            assert (engine.statistics().steps, engine.statistics().active_blocks) == (steps, 0)

    run(main())


@virtual
async def test_blocks_of_a_tier_come_when_they_would_be_loaded(words: Any) -> None:
    async with System() as system:
        tiers = {"kv_host_gb": 1, "kv_offload_after": 1, "kv_bytes_per_token": 1000, "host_gbps": 0.004}
        engine = engine_of(await words.mocker(system, num_gpu_blocks=12, **tiers))
        request = words.generate(list(range(42)), max_tokens=1)
        await ask(engine, request)
        await ask(engine, words.generate(list(range(100, 142)), max_tokens=1))
        names, now = block_hashes(request.token_ids, SIZE)[:10], asyncio.get_running_loop().time
        here = engine.schedulers[0].pool.cached_prefix(names)
        assert here < 10
        begin, exported = now(), Given(engine, request)
        assert exported.blocks == names[:here]
        await exported.over.wait()
        assert exported.blocks == names
        assert now() - begin == pytest.approx((10 - here) * 0.001), "4 kB at 4 MB per second"
        cancelled = Given(engine, request)
        cancelled.cancel()
        await asyncio.sleep(1)
        assert not cancelled.over.is_set()


async def adopted(words: Any, endpoint: HandoffEndpoint, engine: Mocker, ids: list[int]) -> Outbox:
    handoff = Handoff("s", engine.layout(), {}, stored=True)
    request = msgspec.structs.replace(words.generate(ids, max_tokens=3), handoff=handoff)
    outbox = Outbox()
    endpoint.adopt(request, Reply(outbox, 1))
    return outbox


@pytest.mark.parametrize("kind", ["short", "unreachable", "gone", "stalled", "damaged", "layout"])
@virtual
async def test_blocks_that_do_not_come_are_computed_at_once_and_nobody_is_asked(words: Any, kind: Any) -> None:
    """The worker that had them has computed nothing, so the prompt has not crashed it."""

    async def cut(*_: object) -> AsyncGenerator[Block, None]:
        raise TransferError(kind, "of this test")
        yield

    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        endpoint = HandoffEndpoint(engine, engine.spawn, cut)
        outbox = await adopted(words, endpoint, engine, list(range(20)))
        begin = asyncio.get_running_loop().time()
        await answered(outbox)
        assert asyncio.get_running_loop().time() - begin < 0.2
        assert not any(isinstance(delta, Accepted) for delta in outbox.deltas)
        peers = endpoint.statistics().peers
        assert peers is not None
        assert (peers.failures, peers.failed, peers.transfers, endpoint.statistics().failed) == ({kind: 1}, 1, 0, 0)
        endpoint.close()


@virtual
async def test_a_source_that_gives_no_block_for_a_second_is_left(words: Any) -> None:
    closed = asyncio.Event()
    first = block_hashes(words.generate(list(range(20))).token_ids, SIZE)[0]

    async def one(*_: object) -> AsyncGenerator[Block, None]:
        try:
            yield Block(first, content(first, SIZE * 64))
            await asyncio.sleep(1000)
        finally:
            closed.set()

    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        endpoint = HandoffEndpoint(engine, engine.spawn, one)
        outbox = await adopted(words, endpoint, engine, list(range(20)))
        begin = asyncio.get_running_loop().time()
        await answered(outbox)
        assert closed.is_set()
        assert PATIENCE <= asyncio.get_running_loop().time() - begin < PATIENCE + 0.2
        peers = endpoint.statistics().peers
        assert peers is not None
        assert (peers.failures, peers.blocks, peers.bytes) == ({"stalled": 1}, 1, SIZE * 64)
        assert engine.load().peer_ms == pytest.approx(1000 * PATIENCE), "the time that was lost counts"
        await asyncio.sleep(FORGET)
        assert engine.load().peer_ms == 0.0, "others are tried again then"
        endpoint.close()


@virtual
async def test_a_source_that_is_slower_than_computing_is_left(words: Any) -> None:
    ids = list(range(1, 801))
    names = block_hashes(words.generate(ids).token_ids, SIZE)

    async def trickle(*_: object) -> AsyncGenerator[Block, None]:
        for name in names:
            await asyncio.sleep(0.5)
            yield Block(name, content(name, SIZE * 64))

    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=256, speedup_ratio=0.01))
        endpoint = HandoffEndpoint(engine, engine.spawn, trickle)
        patience = len(names) * engine.block_times()[0]
        assert patience > 1.2
        await answered(await adopted(words, endpoint, engine, ids))
        peers = endpoint.statistics().peers
        assert peers is not None
        assert (peers.failures, peers.blocks) == ({"stalled": 1}, int(patience / 0.5))
        assert peers.milliseconds == pytest.approx(1000 * patience, abs=2)
        assert peers.saved_milliseconds == pytest.approx(1000 * peers.blocks * engine.block_times()[0], abs=1)
        endpoint.close()


@virtual
async def test_what_blocks_have_taken_is_published(words: Any) -> None:
    names = block_hashes(words.generate(list(range(20))).token_ids, SIZE)[:4]

    async def slow(_where: object, _session: str, _layout: str, first: int) -> AsyncGenerator[Block, None]:
        for name in names[first:]:
            await asyncio.sleep(0.01)
            yield Block(name, content(name, SIZE * 64))

    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        endpoint = HandoffEndpoint(engine, engine.spawn, slow)
        await answered(await adopted(words, endpoint, engine, list(range(20))))
        assert engine.load().peer_ms == pytest.approx(10.0)
        await answered(await adopted(words, endpoint, engine, list(range(20))))
        assert engine.load().peer_ms == pytest.approx(10.0), "all were here: nothing was measured"
        assert endpoint.statistics().transfers == 0, "these are prompts that others computed"
        endpoint.close()


@virtual
async def test_a_worker_listens_when_it_is_asked_for_blocks_the_first_time(words: Any) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        request = words.generate(list(range(20)), max_tokens=1)
        await ask(engine, request)
        endpoint = HandoffEndpoint(engine, engine.spawn)
        outboxes = [Outbox() for _ in range(3)]
        for outbox in outboxes:
            endpoint.export_stored(request, Reply(outbox, 1), "127.0.0.1", None)
        async with asyncio.timeout(10):
            while not all(outbox.deltas for outbox in outboxes):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        handoffs = [msgspec.msgpack.decode(outbox.deltas[0].items[0], type=Handoff) for outbox in outboxes]
        assert all(one.stored and one.addresses == handoffs[0].addresses for one in handoffs)
        sessions = endpoint.statistics().sessions
        assert sessions is not None
        assert (sessions.open, sessions.held_bytes) == (3, 3 * 4 * SIZE * 64)
        with pytest.raises(Exception, match="computes no prompts for others"):
            endpoint.prefill(request, Reply(Outbox(), 2))
        endpoint.close()
        assert all(isinstance(outbox.deltas[-1], Failed) for outbox in outboxes)
