"""The mocker computes prompts for another mocker, which answers as if it had computed them itself. Virtual time."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from dynamod.actor import System
from dynamod.actor.testing import run, virtual
from dynamod.engine.base import EngineOptions
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.mocker.handoff import content
from dynamod.features.prefill.handoff import FORGET, HandoffEndpoint
from dynamod.features.prefill.transfer.base import Block, TransferError
from dynamod.features.prefill.transfer.sessions import Sessions
from dynamod.kvcache.hashes import block_hashes
from dynamod.message.ingress import Accepted, Failed, Tokens
from dynamod.message.worker import Generate, Handoff
from dynamod.transport.base import CONFIRM, Reply

SIZE = 4  # tokens of a block, as words.mocker has it


class Outbox:
    """Where a reply goes that nobody reads."""

    def __init__(self) -> None:
        self.streams: dict[int, Reply] = {}
        self.deltas: list[Any] = []
        self.origin = self

    def add(self, delta: Any) -> None:
        self.deltas.append(delta)

    def backlog(self, stream: int) -> int:
        return 0


def engine_of(house: Any) -> Mocker:
    engine = house.workers[-1]._engine
    assert isinstance(engine, Mocker)
    return engine


class Exported:
    """What an export gives."""

    def __init__(self, engine: Mocker, request: Generate) -> None:
        self.blocks: list[tuple[int, bytes]] = []
        self.over = asyncio.Event()
        self.cancel = engine.export(request, lambda name, data: self.blocks.append((name, data)), self._done)

    def _done(self, error: Exception | None) -> None:
        assert error is None
        assert not self.over.is_set()
        self.over.set()


def tokens_of(outbox: Outbox) -> tuple[bytes, str | None]:
    found = [delta for delta in outbox.deltas if hasattr(delta, "ids")]
    return b"".join(delta.ids for delta in found), found[-1].finish if found else None


async def answered(outbox: Outbox) -> bytes:
    async with asyncio.timeout(60):
        while tokens_of(outbox)[1] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return tokens_of(outbox)[0]


@given(ids=st.lists(st.integers(0, 50), min_size=1, max_size=40), warm=st.integers(0, 40), most=st.integers(0, 12))
def test_the_answer_is_the_same_however_many_blocks_come(words: Any, ids: list[int], warm: int, most: int) -> None:
    async def main() -> None:
        async with System() as system:
            one = engine_of(await words.mocker(system, num_gpu_blocks=64))
            options = EngineOptions("m", arguments={"block_size": SIZE, "num_gpu_blocks": 64, "watermark": 0})
            other = engine_of(await words.House(system, words.Mock, options).start("other"))
            request = words.generate(ids, max_tokens=6)
            whole = Outbox()
            one.submit(request, Reply(whole, 1))
            expected = await answered(whole)

            exported = Exported(one, request)
            await asyncio.wait_for(exported.over.wait(), 60)
            names = block_hashes(request.token_ids[:-4], SIZE)
            assert exported.blocks == [(name, content(name, SIZE * 64)) for name in names]

            if warm:
                before = Outbox()
                other.submit(words.generate(ids[:warm] or [1], max_tokens=1), Reply(before, 2))
                await answered(before)
            outbox = Outbox()
            held = other.adopt(request, Reply(outbox, 3))
            assert held is not None
            for name, data in exported.blocks[held.first :][:most]:
                assert held.put(name, data)
            assert not outbox.deltas, "nothing is computed before"
            here = held.first
            steps = other.schedulers[0].cached_tokens
            held.go()
            assert await answered(outbox) == expected
            assert other.schedulers[0].cached_tokens - steps >= here * SIZE, "what has come is not computed"
            assert all(one.schedulers[0].pool.active == 0 for one in (one, other))

    run(main())


@virtual
async def test_blocks_come_while_the_prompt_is_computed(words: Any) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64, max_num_batched_tokens=8))
        exported = Exported(engine, words.generate(list(range(33)), max_tokens=1))
        seen = []
        while not exported.over.is_set():
            await asyncio.sleep(0.005)
            seen.append(len(exported.blocks))
        assert {2, 4, 6, 8} <= set(seen)


@virtual
async def test_what_is_wrong_is_not_taken(words: Any) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        request = words.generate(list(range(20)), max_tokens=3)
        names = block_hashes(request.token_ids, SIZE)
        outbox = Outbox()
        held = engine.adopt(request, Reply(outbox, 1))
        assert held is not None
        assert not held.put(names[1], content(names[1], SIZE * 64)), "another one comes first"
        assert not held.put(names[0], b"\0" * SIZE * 64)
        assert not held.put(names[0], content(names[0], SIZE * 64)[:-1])
        assert held.put(names[0], content(names[0], SIZE * 64))
        assert held.first == 1
        held.go()
        held.go()
        assert await answered(outbox)
        assert not held.put(names[1], content(names[1], SIZE * 64)), "too late"


@virtual
async def test_a_reader_that_leaves_gives_the_blocks_back(words: Any) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64, transfer_gbps=0.001))
        request = words.generate(list(range(20)), max_tokens=3)
        names = block_hashes(request.token_ids, SIZE)
        pool = engine.schedulers[0].pool
        for moment in ("before", "waiting"):
            reply = Reply(Outbox(), 1)
            held = engine.adopt(request, reply)
            assert held is not None
            if held.first == 0:
                assert held.put(names[0], content(names[0], SIZE * 64))
            assert pool.active == 1
            if moment == "waiting":
                held.go()
            reply.cancel()
            await asyncio.sleep(1)
            assert (pool.active, engine.schedulers[0].idle) == (0, True)


@virtual
async def test_a_prompt_that_nobody_wants_any_more(words: Any) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64, max_num_batched_tokens=8))
        exported = Exported(engine, words.generate(list(range(60)), max_tokens=1))
        await asyncio.sleep(0.03)
        exported.cancel()
        exported.cancel()
        count = len(exported.blocks)
        await asyncio.sleep(1)
        assert (len(exported.blocks), exported.over.is_set()) == (count, False)
        assert (engine.schedulers[0].pool.active, engine.schedulers[0].idle) == (0, True)


@virtual
async def test_the_transfer_takes_its_time(words: Any) -> None:
    async with System() as system:
        bandwidth = {"kv_bytes_per_token": 1_000_000, "transfer_gbps": 0.016}
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64, **bandwidth))
        request = words.generate(list(range(9)), max_tokens=1)
        names, outbox = block_hashes(request.token_ids, SIZE), Outbox()
        held = engine.adopt(request, Reply(outbox, 1))
        assert held is not None
        for name in names:
            assert held.put(name, content(name, SIZE * 1_000_000))
        begin = asyncio.get_running_loop().time()
        held.go()
        await answered(outbox)
        assert 0.5 <= asyncio.get_running_loop().time() - begin <= 0.6, "8 MB at 16 MB per second"


@virtual
async def test_a_prompt_without_a_full_block(words: Any) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        exported = Exported(engine, words.generate([1, 2, 3, 4], max_tokens=1))
        assert exported.over.is_set(), "its last token gives the next one, which is the reader's work"
        assert exported.blocks == []


def adopted(engine: Mocker, words: Any, read: Any) -> tuple[HandoffEndpoint, Reply, Outbox]:
    """A request whose blocks `read` is to bring."""
    endpoint, outbox = HandoffEndpoint(engine, engine.spawn, read), Outbox()
    handoff = Handoff("s", engine.layout(), {})
    request = msgspec.structs.replace(words.generate(list(range(20)), max_tokens=3), handoff=handoff)
    reply = Reply(outbox, 1)
    endpoint.adopt(request, reply)
    return endpoint, reply, outbox


@virtual
async def test_a_client_that_leaves_while_blocks_are_read_is_no_failed_transfer(words: Any) -> None:
    closed = asyncio.Event()

    async def silent(*_: object) -> AsyncGenerator[Block, None]:
        try:
            await asyncio.sleep(1000)
            yield Block(0, b"")
        finally:
            closed.set()

    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        endpoint, reply, outbox = adopted(engine, words, silent)
        await asyncio.sleep(1)
        reply.cancel()
        await asyncio.wait_for(closed.wait(), 1)
        await asyncio.sleep(1)
        assert (endpoint.statistics().failed, endpoint.statistics().transfers) == (0, 0)
        assert (engine.schedulers[0].pool.active, engine.schedulers[0].idle, outbox.deltas) == (0, True, [])


@pytest.mark.parametrize(("kind", "asks"), [("short", True), ("unreachable", True), ("damaged", False)])
@pytest.mark.parametrize("answered", [True, False])
@virtual
async def test_it_asks_before_it_computes_a_prompt_whose_worker_may_have_crashed(
    words: Any, kind: Any, asks: bool, answered: bool
) -> None:
    async def cut(*_: object) -> AsyncGenerator[Block, None]:
        raise TransferError(kind, "of this test")
        yield

    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        _endpoint, reply, outbox = adopted(engine, words, cut)
        await asyncio.sleep(CONFIRM / 2)
        computed = lambda: any(isinstance(delta, Tokens) for delta in outbox.deltas)  # noqa: E731
        assert (isinstance(outbox.deltas[0], Accepted), computed()) == (asks, not asks)
        if answered:
            reply.confirm()
            await asyncio.sleep(CONFIRM / 4)
        else:
            await asyncio.sleep(CONFIRM)
        assert computed(), "the ingress may be gone, or slow"
        assert reply.ended


@virtual
async def test_a_source_that_was_not_reached_costs_its_connection_once_in_a_while(words: Any) -> None:
    tries: list[str] = []

    async def filtered(addresses: Any, *_: object) -> AsyncGenerator[Block, None]:
        tries.append(addresses["tcp"])
        if addresses["tcp"] == "lost":
            await asyncio.sleep(2)
            raise TransferError("unreachable", "tcp: timed out")
        return
        yield

    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        endpoint, now = HandoffEndpoint(engine, engine.spawn, filtered), asyncio.get_running_loop().time

        async def ask(address: str, seed: int, *, stored: bool = False) -> float:
            handoff = Handoff("s", engine.layout(), {"tcp": address}, stored=stored)
            request = words.generate([seed] * 20, max_tokens=1)
            outbox, began = Outbox(), now()
            reply = Reply(outbox, 1)
            endpoint.adopt(msgspec.structs.replace(request, handoff=handoff), reply)
            async with asyncio.timeout(10):
                while not reply.ended:
                    await asyncio.sleep(0.01)
                    reply.confirm()
            return now() - began

        assert await ask("lost", 1) >= 2
        assert engine.load().move_ms == pytest.approx(2000, abs=20), "routers hear of it"
        assert await ask("lost", 2) < 0.5
        assert await ask("lost", 5, stored=True) < 0.5
        assert await ask("other", 3) < 0.5
        assert tries == ["lost", "other"]
        found = endpoint.statistics()
        assert found.peers is not None
        assert (found.failures, found.transfers, found.peers.failures) == (
            {"unreachable": 2},
            1,
            {"unreachable": 1},
        )
        assert engine.load().peer_ms == 0, "what took no time was not measured"
        assert engine.load().move_ms == pytest.approx(2000, abs=20)
        await asyncio.sleep(FORGET)
        assert engine.load().move_ms == 0, "it is tried again"
        assert await ask("lost", 4) >= 2
        assert tries == ["lost", "other", "lost"]
        endpoint.close()


class Taker:
    """The reader of a session, which takes blocks when it is told to."""

    served = False

    def more(self) -> None: ...

    def ask(self) -> None: ...

    def over(self, kind: Any, why: str) -> None: ...


@pytest.mark.parametrize("stored", [False, True])
@virtual
async def test_a_prompt_larger_than_the_memory_for_sessions_waits_for_its_reader(words: Any, stored: bool) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64, max_num_batched_tokens=8))
        request = words.generate(list(range(200)), max_tokens=1)
        if stored:
            await Exported(engine, request).over.wait()
        endpoint = HandoffEndpoint(engine, engine.spawn)
        now = asyncio.get_running_loop().time
        endpoint.sessions = sessions = Sessions(now, engine.spawn, engine.layout(), most_bytes=3 * SIZE * 64)
        outbox, names = Outbox(), block_hashes(request.token_ids[:-4], SIZE)
        if stored:
            endpoint.export_stored(request, Reply(outbox, 1), "", None)
        else:
            endpoint.prefill(request, Reply(outbox, 1))
        [session] = sessions._open.values()
        sessions.attach(session.id, engine.layout(), Taker())
        for count in range(len(names)):
            await asyncio.sleep(1)
            session.touch()
            assert (session.count, session.finished) == (min(count + 3, len(names)), count + 3 >= len(names))
            assert session.block(count).name == names[count]
            session.acknowledge(count + 1)
        assert engine.schedulers[0].idle
        assert not engine.ranks[0].exports
        assert sessions.statistics().held_bytes == 0
        session.end("read")


@virtual
async def test_what_a_prompt_takes_on_its_way_is_published(words: Any) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64))
        endpoint, now = HandoffEndpoint(engine, engine.spawn), asyncio.get_running_loop().time
        endpoint.sessions = sessions = Sessions(now, engine.spawn, engine.layout())
        for seed, seconds, mean in ((1, 0.04, 40), (2, 0.08, 50), (3, 0.02, 42.5)):
            endpoint.prefill(words.generate([seed] * 20, max_tokens=1), Reply(Outbox(), seed))
            [session] = sessions._open.values()
            while not session.finished:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await asyncio.sleep(seconds)
            session.end("read")
            assert engine.load().move_ms == pytest.approx(mean, abs=1.5)
        endpoint.prefill(words.generate([4] * 20, max_tokens=1), Reply(Outbox(), 4))
        await asyncio.sleep(5)
        sessions.close()  # nobody has read it
        assert engine.load().move_ms == pytest.approx(42.5, abs=1.5)
        await asyncio.sleep(FORGET)
        assert engine.load().move_ms == 0


@pytest.mark.parametrize("how", ["expires", "is cancelled"])
@virtual
async def test_a_prompt_whose_session_has_ended_is_computed_no_further(words: Any, how: str) -> None:
    async with System() as system:
        engine = engine_of(await words.mocker(system, num_gpu_blocks=64, max_num_batched_tokens=8))
        endpoint = HandoffEndpoint(engine, engine.spawn)
        now = asyncio.get_running_loop().time
        sessions = Sessions(now, engine.spawn, engine.layout(), most_bytes=3 * SIZE * 64, lease=30)
        endpoint.sessions = sessions
        outbox = Outbox()
        reply = Reply(outbox, 1)
        endpoint.prefill(words.generate(list(range(200)), max_tokens=1), reply)
        await asyncio.sleep(1)
        assert sessions.statistics().held_bytes == 3 * SIZE * 64, "it has room for three blocks only"
        if how == "expires":
            await asyncio.sleep(40)
            assert isinstance(outbox.deltas[-1], Failed)
        else:
            reply.cancel()
        await asyncio.sleep(1)
        assert engine.schedulers[0].idle
        assert not engine.ranks[0].exports
        assert sessions.statistics().held_bytes == 0
