"""What external engines have in common, through a real worker: a double that counts stands for the engine."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.actor import System
from dynamod.engine.adapter.blocks import EngineBlocks
from dynamod.engine.adapter.counts import EngineCounts
from dynamod.engine.adapter.engine import AdapterEngine
from dynamod.engine.adapter.tiers import HostTier
from dynamod.engine.adapter.wire import BlockStored
from dynamod.engine.base import EngineOptions
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens, vectors
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.errors import UserError
from dynamod.message.ingress import Items
from dynamod.message.kv_events import Load, RequestStarted, Snapshot, Stored, TierStored
from dynamod.message.worker import Embed, Generate
from dynamod.transport.base import Reply

BLOCK = BlockStored([7], None, [1, 2, 3, 4], 4)
NAME = block_hashes(tokens.pack([1, 2, 3, 4]), 4)[0]


class Counting(AdapterEngine):
    """Answers with the numbers behind the prompt's last one, one per turn of the loop; behind 99 it hesitates."""

    name = "counting"
    product = "Counting"
    capabilities = Capabilities(greedy_continuation=True)
    fails: Exception | None = None
    released = 0

    async def _model_card(self, path: Any = None, **fields: Any) -> ModelCard:
        return ModelCard("m")

    async def load_engine(self) -> None:
        thread = await self.processes.stage("loads the model", threading.get_ident)
        assert thread == await self.processes.stage("looks around", threading.get_ident) != threading.get_ident()
        if self.fails is not None:
            raise self.fails
        self.block_size, self.room, self.vocabulary, self.counts.total_blocks = 4, 50, 1000, 10
        self.blocks = EngineBlocks(4, self.publish)

    async def generate(self, request: Generate, reply: Reply, limit: int) -> None:
        ids, first = self.prompt(request), True
        prior = tokens.count(request.prior_output)
        try:
            for count in range(prior + 1, limit + 1):
                await asyncio.sleep(0)
                if ids[-1] == 666:
                    raise self.processes.ended()
                if ids[-1] == 13:
                    raise ValueError("unlucky")
                if first:
                    self.begun(request, reply, None)
                    first = False
                self.send(reply, [ids[-1] + count - prior], "length" if count == limit else None)
                await asyncio.sleep(3600 if ids[-1] == 99 else 0)
        except asyncio.CancelledError:
            type(self).released += 1
            raise


class Turning(Counting):
    """Started for vectors: the first id and the length of a text. Behind 99 it hesitates, 0 has no direction."""

    embedding_length = 2

    async def vectors_of(self, request: Embed, inputs: Any) -> list[list[float]]:
        try:
            if any(ids[-1] == 99 for ids in inputs):
                await asyncio.sleep(3600)
        except asyncio.CancelledError:
            type(self).released += 1
            raise
        return [[float(ids[0]), len(ids) if ids[0] else 0.0] for ids in inputs]


async def house(words: Any, system: System) -> Any:
    return await words.House(system, Counting, EngineOptions("m")).start()


async def test_answers_counts_and_limits(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        [card] = worker.published
        assert (card.context_length, card.kv_cache_block_size, card.capabilities.kv_events) == (50, 4, True)
        answer = await worker.ask(words.generate([1, 5], max_tokens=3)).wait()
        assert (answer.ids, answer.finish) == ([6, 7, 8], "length")
        answer = await worker.ask(words.generate([1, 5], prior=[6, 7], max_tokens=3)).wait()
        assert (answer.ids, answer.finish) == ([8], "length")
        answer = await worker.ask(words.generate([1, 5], prior=[6, 7, 8], max_tokens=3)).wait()
        assert (answer.ids, answer.finish) == ([], "length")
        answer = await worker.ask(words.generate([1, 5])).wait()
        assert len(answer.ids) == 48
        assert worker.statistics.engine.tokens == 3 + 1 + 48


async def test_what_the_engine_has_made_is_looked_at_before_it_serves(
    words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection of a million objects behind that would stop the first answers."""
    frozen: list[int] = []
    double = SimpleNamespace(collect=lambda: None, freeze=lambda: frozen.append(1))
    monkeypatch.setattr("dynamod.engine.adapter.engine.gc", double)
    async with System() as system:
        await house(words, system)
        assert frozen == [1]


async def test_requests_that_cannot_be_served(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        answer = await worker.ask(words.generate([1] * 50)).wait()
        assert (answer.error.error, answer.error.code) == ("BadRequest", "context_length_exceeded")
        answer = await worker.ask(words.generate([1, 1000])).wait()
        assert (answer.error.error, answer.error.param) == ("BadRequest", "token_ids")
        answer = await worker.ask(words.generate([13])).wait()
        assert (answer.error.error, answer.error.message) == ("EngineFailed", "counting: ValueError: unlucky")
        assert (await worker.ask(words.generate([1], max_tokens=1)).wait()).finish == "length"


async def test_a_reader_that_leaves_frees_the_slot(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        Counting.released = 0
        answers = [worker.ask(words.generate([99])) for _ in range(3)]
        await words.until(lambda: all(answer.ids for answer in answers))
        assert worker.statistics.engine.running == 3
        for answer in answers:
            answer.stream.cancel()
        await words.until(lambda: Counting.released == 3)
        await words.until(lambda: worker.statistics.engine.running == 0)


async def test_the_end_of_the_engine_is_the_end_of_the_worker(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        other = worker.ask(words.generate([1]))
        answer = worker.ask(words.generate([666]))
        await asyncio.gather(other.wait(), answer.wait())
        for one in (other, answer):
            if one.error is not None:
                assert one.error.retry
        assert answer.error is not None
        assert "Counting's engine process has ended" in answer.error.message
        assert worker.withdrawn


async def test_blocks_and_load_are_what_routers_see(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        engine: Any = worker.workers[-1]._engine
        feed = worker.subscribe(worker.stranger())
        await words.until(lambda: feed.news)
        assert Snapshot((), ()) in feed.news[0]
        engine.blocks.apply(0, BLOCK)
        await words.until(lambda: any(isinstance(event, Stored) for news in feed.news for event in news))
        await worker.ask(words.generate([1, 2, 3, 4, 5], max_tokens=1)).wait()
        [started] = [event for news in feed.news for event in news if isinstance(event, RequestStarted)]
        assert (started.blocks, started.prefill) == ((NAME,), 1)
        await words.until(lambda: engine.open.count == 0)
        engine.counts = EngineCounts(total_blocks=10, used_blocks=7, queued=5, queried=10, hits=4)
        assert engine.load() == Load(0, 0, 0, 10, 0.4)
        engine.open.count = 2
        assert engine.load() == Load(0, 2, 7, 10, 0.4)
        engine.open.count = 0


async def test_a_tier_of_the_engines_own_is_what_routers_see(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        engine: Any = worker.workers[-1]._engine
        assert engine.statistics().host_tier is None
        engine.blocks.apply(0, BLOCK)
        engine.blocks.apply(0, msgspec.structs.replace(BLOCK, medium="CPU"))
        engine.host_tier = HostTier(stored_bytes=64, loaded_bytes=128)
        feed = worker.subscribe(worker.stranger())
        await words.until(lambda: feed.news)
        assert TierStored("CPU_PINNED", (NAME,)) in feed.news[0]
        found = engine.statistics().host_tier
        assert (found.blocks, found.bytes, found.stored, found.loaded) == (1, 64, 1, 2)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("no\n  such model"), "Counting cannot serve None: no such model"),
        (ValueError("x" * 600), f"Counting cannot serve None: {'x' * 500} ..."),
        (UserError("a wrong word"), "a wrong word"),
    ],
)
async def test_what_the_engine_refuses_is_one_line(
    words: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    monkeypatch.setattr(Counting, "fails", error)
    engine = Counting(EngineOptions("m"), lambda *_: None)
    with pytest.raises(UserError) as caught:
        await engine.start()
    assert str(caught.value) == says


async def test_an_engine_that_is_started_for_vectors(words: Any) -> None:
    def embed(*inputs: list[int]) -> Embed:
        return Embed("r", "m", tuple(map(tokens.pack, inputs)))

    async with System() as system:
        worker = await words.House(system, Turning, EngineOptions("m")).start()
        [card] = worker.published
        assert (card.types, card.embedding_length) == (("embeddings", "score"), 2)
        answer = await worker.ask(embed([3, 1, 1, 1], [1])).wait()
        [delta] = [one for one in answer.deltas if isinstance(one, Items)]
        assert delta.finish == "stop"
        found = [list(vectors.unpack(one)) for one in delta.items]
        assert found == [pytest.approx([0.6, 0.8]), pytest.approx([0.5**0.5, 0.5**0.5])]
        assert (await worker.ask(embed([1], [1000])).wait()).error.error == "BadRequest"
        assert (await worker.ask(embed([0])).wait()).error.message == "Counting made a vector without a direction"
        assert (await worker.ask(words.generate([1])).wait()).error.error == "BadRequest", "it makes no answers"
        Turning.released = 0
        gone = worker.ask(embed([99]))
        await words.until(lambda: worker.statistics.engine.running == 1)
        gone.stream.cancel()
        await words.until(lambda: Turning.released == 1)
        await words.until(lambda: worker.statistics.engine.running == 0)
