"""One worker reads the blocks that another one has; real sockets."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.message.ingress import Items
from dynamod.message.kv_events import PrefillCompleted, RequestFinished, RequestStarted
from dynamod.message.worker import Generate, Handoff, Prefill

PROMPT = list(range(1, 42))


async def worker(words: Any, system: System, name: str, folder: Path | None = None, **arguments: Any) -> Any:
    arguments = {"block_size": 4, "num_gpu_blocks": 64, "watermark": 0, **arguments}
    options = EngineOptions("m", arguments=arguments, transfer_host="127.0.0.1", sockets=folder)
    return await words.House(system, words.Mock, options).start(name)


async def handoff_of(words: Any, asked: Any) -> Handoff:
    await words.until(lambda: any(isinstance(delta, Items) for delta in asked.deltas))
    [item] = next(delta.items for delta in asked.deltas if isinstance(delta, Items))
    return msgspec.msgpack.decode(item, type=Handoff)


@pytest.mark.parametrize("known", [0, 12, 41])
async def test_what_one_has_the_other_does_not_compute(words: Any, tmp_path: Path, known: int) -> None:
    request: Generate = words.generate(PROMPT, max_tokens=6)
    async with System() as system:
        one, other = await worker(words, system, "one", tmp_path), await worker(words, system, "other")
        wanted = (await one.ask(words.generate([*PROMPT[:known], *range(100, 106)], max_tokens=1)).wait()).ids
        feed = one.subscribe(one.stranger())
        await words.until(lambda: feed.news)
        source = one.ask(Prefill(request, stored=True))
        handed = msgspec.structs.replace(request, handoff=await handoff_of(words, source))
        assert one.statistics.open == 1, "a drain waits for its reader"
        ids = (await other.ask(handed).wait()).ids
        await source.wait()
        assert ids == (await one.ask(request).wait()).ids
        assert len(wanted) == 1
        peers, blocks = other.statistics.handoff.peers, min(known, 40) // 4
        assert (peers.transfers, peers.blocks, peers.bytes) == (1, blocks, blocks * 4 * 64)
        engine = other.workers[-1]._engine
        assert (engine.schedulers[0].cached_tokens, engine.peer_seconds > 0) == (blocks * 4, blocks > 0)
        sessions = one.statistics.handoff.sessions
        assert (sessions.open, sessions.read, sessions.sent_blocks) == (0, 1, blocks)
        events = [event for item in feed.news[1:] for event in item]
        requests = [one for one in events if isinstance(one, RequestStarted | PrefillCompleted | RequestFinished)]
        assert requests[:3] == [RequestStarted(2, (), 0), PrefillCompleted(2), RequestFinished(2)], "it is no load"


async def test_a_reader_that_leaves(words: Any) -> None:
    async with System() as system:
        one = await worker(words, system, "one")
        source = one.ask(Prefill(words.generate(PROMPT), stored=True))
        await handoff_of(words, source)
        source.stream.cancel()
        await words.until(lambda: one.statistics.open == 0)
        sessions = one.statistics.handoff.sessions
        assert (sessions.open, sessions.released) == (0, 1)
        gone = one.ask(Prefill(words.generate(PROMPT), stored=True))
        gone.stream.cancel()
        await words.until(lambda: one.statistics.open == 0)


async def test_workers_that_give_none(words: Any) -> None:
    async with System() as system:
        own = await worker(words, system, "own", kv_transfer="pull")
        assert not own.published[0].capabilities.stored_blocks
        refused = await own.ask(Prefill(words.generate(PROMPT), stored=True)).wait()
        assert (refused.error.error, refused.error.message) == (
            "BadRequest",
            "engine mocker gives no blocks that it has stored",
        )
        nowhere = await worker(words, system, "nowhere", Path("/nowhere"))
        nowhere.workers[-1].transfer_host = lambda: "192.0.2.1"
        failed = await nowhere.ask(Prefill(words.generate(PROMPT), stored=True)).wait()
        assert failed.error.message.startswith("no worker can read blocks here: ")
        assert nowhere.statistics.open == 0
