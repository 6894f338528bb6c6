"""Prompts that are larger than the memory for sessions, from worker to worker; mockers, real sockets."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.features.role_switch.worker import Switch
from dynamod.message.ingress import Items
from dynamod.message.worker import Handoff, Prefill
from dynamod.worker.parts import PartQuestion, Role

ARGUMENTS = {"block_size": 4, "num_gpu_blocks": 512, "watermark": 0, "max_num_batched_tokens": 64}
PROMPT = [number % 300 for number in range(801)]
BLOCK = 4 * 64


async def worker(words: Any, system: System, name: str, folder: Path | None) -> Any:
    options = EngineOptions("m", arguments=ARGUMENTS, transfer_host="127.0.0.1", sockets=folder)
    return await words.House(system, words.Mock, options).start(name)


@pytest.mark.parametrize("backend", ["shm", "tcp"])
@pytest.mark.parametrize("blocks", [1, 3, 50])
async def test_it_comes_whole(words: Any, tmp_path: Path, backend: str, blocks: int) -> None:
    request = words.generate(PROMPT, max_tokens=6)
    async with System() as system:
        prefill = await worker(words, system, "prefill", tmp_path if backend == "shm" else None)
        prefill.workers[-1].parts["prefill"].most_bytes = blocks * BLOCK + 1
        assert await prefill.ref.ask(PartQuestion(Switch(role="prefill")), timeout=10) == Role("prefill", 1)
        decode = await worker(words, system, "decode", None)
        wanted = (await decode.ask(words.generate(PROMPT[:4] + PROMPT, max_tokens=6)).wait()).ids
        sources = [prefill.ask(Prefill(request)) for _ in range(2)]
        for source in sources:
            await words.until(lambda source=source: any(isinstance(delta, Items) for delta in source.deltas))
            [item] = next(delta.items for delta in source.deltas if isinstance(delta, Items))
            handoff = msgspec.msgpack.decode(item, type=Handoff)
            assert backend in handoff.addresses
            chosen = {backend: handoff.addresses[backend]}
            handed = msgspec.structs.replace(request, handoff=msgspec.structs.replace(handoff, addresses=chosen))
            assert len((await decode.ask(handed).wait()).ids) == len(wanted) == 6
            assert (await source.wait()).finish == "stop"
        read, sessions = decode.statistics.handoff, prefill.statistics.handoff.sessions
        assert read.tokens == 4 * read.blocks, "those that moved, not the whole prompts"
        assert (read.transfers, read.failed, read.blocks) == (2, 0, 199), (
            "one was here, and the second time all were here"
        )
        assert (sessions.read, sessions.failed, sessions.expired, sessions.held_bytes) == (2, 0, 0, 0)
