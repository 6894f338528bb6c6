"""A prompt larger than the memory for sessions, between two real engines over real sockets."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.features.prefill.handoff import HandoffEndpoint
from dynamod.message.ingress import Items
from dynamod.message.worker import Handoff

from .exchange import SIZE, Engines, Exported, asked, heard, noise

pytestmark = pytest.mark.engine


@pytest.fixture
async def engines(words: Any) -> AsyncIterator[Engines]:
    made = Engines(words)
    yield made
    await made.close()


@pytest.mark.parametrize("backend", ["shm", "tcp"])
async def test_it_comes_whole_and_with_the_bits_of_an_export_without_bound(
    engines: Engines, words: Any, tmp_path: Path, backend: str
) -> None:
    """Blocks of two prompts stay in the KV cache until those before them have been read."""
    prefill, decode = await engines.start(), await engines.start()
    size = prefill._shared.export_bytes
    tasks: list[asyncio.Task[Any]] = []

    def spawn(work: Any, name: str) -> asyncio.Task[Any]:
        tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return tasks[-1]

    source = HandoffEndpoint(prefill, spawn, most_bytes=5 * size)
    reader = HandoffEndpoint(decode, spawn)
    await source.listen("127.0.0.1", tmp_path if backend == "shm" else None)
    requests = [asked(noise(seed, 700)) for seed in range(2)]
    exports = [engines.open(source.prefill, request) for request in requests]
    await words.until(lambda: prefill.statistics().computed_total == 2 * (699 // SIZE) * SIZE)
    await words.until(lambda: prefill._steps.scheduler.idle)
    assert source.sessions is not None
    sessions = source.sessions.statistics()
    assert (sessions.held_bytes, sessions.waiting, prefill.statistics().waiting) == (5 * size, 2, 2)
    answers = []
    for request, export in zip(reversed(requests), reversed(exports), strict=True):
        [item] = next(delta.items for delta in export.deltas if isinstance(delta, Items))
        handoff = msgspec.msgpack.decode(item, type=Handoff)
        chosen = {backend: handoff.addresses[backend]}
        handed = msgspec.structs.replace(request, handoff=msgspec.structs.replace(handoff, addresses=chosen))
        answers.append(engines.open(reader.adopt, handed))
    for answer, request in zip(answers, reversed(requests), strict=True):
        assert len(heard(await answer.wait())[0]) == 12
        assert await Exported(decode, request).wait() == await Exported(prefill, request).wait(), "the same bytes"
    await words.until(lambda: reader.statistics().transfers == 2)
    assert reader.statistics().blocks == 2 * (699 // SIZE)
    totals = prefill.statistics()
    assert (totals.computed_total, totals.preemptions) == (2 * (699 // SIZE) * SIZE, 0), "nothing was computed again"
    await words.until(lambda: source.sessions is not None and source.sessions.statistics().read == 2)
    for engine in engines.all:
        await engines.idle(engine)
    for endpoint in (source, reader):
        endpoint.close()
    await asyncio.wait(tasks, timeout=5)
