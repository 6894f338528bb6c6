"""Mockers that move KV blocks by themselves, each in a real worker: what goes wrong is counted, and never served."""

import asyncio
from typing import Any

import msgspec
import pytest

from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.mocker import own_transfer
from dynamod.message.ingress import Items
from dynamod.message.worker import HANDOFF_FAILED, Handoff, Prefill, TransferShape

SHAPES: list[TransferShape] = ["pull", "rendezvous"]
PROMPT = list(range(30))


async def worker(words: Any, system: System, shape: str, mode: Any, **more: Any) -> Any:
    arguments = {"block_size": 4, "num_gpu_blocks": 64, "watermark": 0, "kv_transfer": shape, **more}
    options = EngineOptions("m", arguments=arguments, disaggregation_mode=mode, transfer_host="127.0.0.1")
    return await words.House(system, words.Mock, options).start(f"{mode}-{len(arguments)}")


async def handoff_of(words: Any, asked: Any) -> Handoff:
    await words.until(lambda: any(isinstance(delta, Items) for delta in asked.deltas) or asked.done.is_set())
    assert asked.error is None, asked.error
    [data] = next(delta.items for delta in asked.deltas if isinstance(delta, Items))
    return msgspec.msgpack.decode(data, type=Handoff)


def handed(words: Any, handoff: Handoff | None, **stops: Any) -> Any:
    return msgspec.structs.replace(words.generate(PROMPT, **{"max_tokens": 6, **stops}), handoff=handoff)


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_answer_with_the_blocks_of_another_engine(words: Any, shape: TransferShape) -> None:
    async with System() as system:
        prefill = await worker(words, system, shape, "prefill")
        decode = await worker(words, system, shape, "decode")
        assert prefill.published[0].types == ()
        assert decode.published[0].capabilities.needs_prefill is (shape == "rendezvous")
        asked = prefill.ask(Prefill(words.generate(PROMPT)))
        handoff = await handoff_of(words, asked)
        assert handoff.shape == shape
        answer = await decode.ask(handed(words, handoff)).wait()
        await asked.wait()
        assert (asked.error, len(answer.ids)) == (None, 6)
        read, given = decode.statistics.handoff, prefill.statistics.handoff
        assert (read.transfers, read.failed, read.bytes) == (1, 0, 7 * 4 * 64)
        assert (given.sessions.opened, given.sessions.open, given.sessions.read) == (1, 0, 1)

        plain = await words.mocker(system, num_gpu_blocks=64)
        assert (await plain.ask(words.generate(PROMPT, max_tokens=6)).wait()).ids == answer.ids


@pytest.mark.parametrize("fault", ["nobody there", "another prompt", "another layout", "a silent source", "none"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_blocks_that_do_not_come(
    words: Any, shape: TransferShape, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pull the answer is that of a worker alone; by rendezvous the request fails, to be sent once more."""
    monkeypatch.setattr(own_transfer, "STALL", 0.2)
    async with System() as system:
        prefill = await worker(words, system, shape, "prefill")
        decode = await worker(words, system, shape, "decode")
        asked = prefill.ask(Prefill(words.generate(PROMPT)))
        handoff: Handoff | None = await handoff_of(words, asked)
        assert handoff is not None
        silent = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        changed = {
            "nobody there": {"params": {**handoff.params, "port": 1}},
            "another prompt": {"params": {**handoff.params, "prompt": "x"}},
            "another layout": {"layout": "other"},
            "a silent source": {"params": {**handoff.params, "port": port}},
        }.get(fault)
        handoff = msgspec.structs.replace(handoff, **changed) if changed is not None else None
        if shape == "rendezvous" and fault == "a silent source":  # only the ingress knows whether it computes
            answer = decode.ask(handed(words, handoff))
            await asyncio.sleep(0.1)
            answer.stream.cancel()
            await words.until(lambda: decode.statistics.open == 0)
        else:
            answer = await decode.ask(handed(words, handoff)).wait()
            assert decode.statistics.handoff is None or decode.statistics.handoff.transfers == 0
            if shape == "pull":
                assert len(answer.ids) == 6
            else:
                assert (answer.error.code, answer.error.retry) == (HANDOFF_FAILED, True)
                assert ("not alike" in answer.error.message) is (fault == "another layout")
            if fault != "none":
                assert decode.statistics.handoff.failed == 1
        silent.close()
        asked.stream.cancel()
        await words.until(lambda: prefill.statistics.handoff.sessions.released == 1)
        for house in (prefill, decode):
            assert house.statistics.engine.running == house.statistics.engine.waiting == 0


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_prompt_that_nobody_reads_expires(
    words: Any, shape: TransferShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_transfer.MockerTransfer, "lease", 0.1)
    async with System() as system:
        prefill = await worker(words, system, shape, "prefill")
        asked = await prefill.ask(Prefill(words.generate(PROMPT))).wait()
        assert asked.error.message == "no worker has read the blocks of the prompt in time"
        found = prefill.statistics.handoff.sessions
        assert (found.open, found.expired, found.failed) == (0, 1, 1)


async def test_a_worker_that_is_for_answers_computes_no_prompts_for_others(words: Any) -> None:
    async with System() as system:
        decode = await worker(words, system, "pull", "decode")
        refused = await decode.ask(Prefill(words.generate(PROMPT))).wait()
        assert refused.error.error == "BadRequest"
        plain = await words.House(
            system, words.Mock, EngineOptions("m", arguments={"enable_prefix_caching": False})
        ).start("plain")
        refused = await plain.ask(Prefill(words.generate(PROMPT))).wait()
        assert refused.error.error == "BadRequest"
        assert len((await plain.ask(handed(words, Handoff("s"))).wait()).ids) == 6, "it computes what it cannot take"
