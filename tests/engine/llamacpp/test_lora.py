"""LoRA adapters in the real llama.cpp: texts alone and mixed, the prefix cache, blocks by adapter."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.actor import System
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.kv_events import Stored

from .lora import COUNT, PROMPT, folder, serve

__all__ = ["folder"]

pytestmark = pytest.mark.engine


async def test_texts_differ_by_adapter_and_are_the_same_alone_and_mixed(
    words: Any, system: System, folder: Path
) -> None:
    served = await serve(words, system, folder, "one", "two", enable_prefix_caching=False)
    alone = {name: await served.text(name) for name in ("", "one", "two")}
    assert len({tuple(text) for text in alone.values()}) == 3
    names = ["", "one", "two", "one", "", "two", "", "one"]
    mixed = await asyncio.gather(*[served.text(name) for name in names])
    assert mixed == [alone[name] for name in names]


async def test_the_prefix_cache_never_mixes_them(words: Any, system: System, folder: Path) -> None:
    plain = await serve(words, system, folder, "one", "two", enable_prefix_caching=False)
    cold = {name: await plain.text(name) for name in ("", "one", "two")}
    async with System() as other:
        served = await serve(words, other, folder, "one", "two")
        for name in ("", "one", "two"):
            assert await served.text(name) == cold[name], name  # each behind the blocks of the others
        before = served.engine.statistics().computed_total
        for name in ("two", "", "one"):
            assert await served.text(name) == cold[name], name
        assert served.engine.statistics().computed_total - before == 3 * (COUNT - 1 + len(PROMPT) - 64)
        mixed = await asyncio.gather(*[served.text(name) for name in ("one", "", "two")])
        assert list(mixed) == [cold["one"], cold[""], cold["two"]]


async def test_blocks_are_named_by_prompt_and_adapter(words: Any, system: System, folder: Path) -> None:
    served = await serve(words, system, folder, "one", "two")
    feed = served.house.subscribe()
    for name in ("", "one", "two"):
        await served.text(name)
    await words.until(lambda: feed.news)
    names = [block for events in feed.news for event in events if isinstance(event, Stored) for block in event.blocks]
    salts = ["", *(one.digest for one in served.engine.card().adapters)]
    for salt in salts:
        wanted = block_hashes(tokens.pack(PROMPT), 16, salt)
        assert set(wanted) <= set(names)
        assert served.engine.uncached(wanted, len(PROMPT)) == 16


async def test_scale_0_is_the_model_alone(words: Any, system: System, folder: Path) -> None:
    served = await serve(words, system, folder, "one", scale=0.0)
    assert await served.text("one") == await served.text()


async def test_an_answer_goes_on_behind_that_of_another_worker(words: Any, system: System, folder: Path) -> None:
    served = await serve(words, system, folder, "one", "two")
    whole = await served.text("one")
    async with System() as other:
        second = await serve(words, other, folder, "one", "two")
        assert await second.text("one", prior_output=tokens.pack(whole[:9])) == whole[9:]


async def test_what_fell_out_of_the_device_comes_back_by_adapter(words: Any, system: System, folder: Path) -> None:
    served = await serve(
        words, system, folder, "one", "two", num_blocks=16, idle_tokens=0, kv_host_gb=0.1, kv_offload_after=1
    )
    names = ("", "one", "two")
    first = {name: await served.text(name) for name in names}
    await words.until(lambda: served.engine.statistics().host_tier.stored >= 3 * 5)
    for other in range(2):
        await served.text("", [300 + other, *PROMPT])
    before = served.engine.statistics().imported_blocks
    assert {name: await served.text(name) for name in names} == first
    assert served.engine.statistics().imported_blocks - before >= 2 * 4


async def test_stored_blocks_are_given_by_adapter(words: Any, system: System, folder: Path) -> None:
    served = await serve(words, system, folder, "one", "two")
    await served.text("one")
    for name, count in (("one", 4), ("two", 0), ("", 0)):
        request, given, over = served.asked(name), list[int](), list[Exception | None]()
        served.engine.export_stored(request, lambda block, _data: given.append(block), over.append)  # noqa: B023
        await words.until(lambda: over)  # noqa: B023
        assert (given, over) == (block_hashes(request.token_ids, 16, request.salt)[:count], [None])
