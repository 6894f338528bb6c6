"""Prefixes that fell out of the device of a real engine come back from memory and from files, with the same bits."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.kvcache.store import LevelStatistics
from dynamod.message.kv_events import Removed, Stored, TierRemoved, TierStored
from dynamod.message.worker import Generate

from .exchange import SIZE, Engines, Exported, asked, heard, noise

pytestmark = pytest.mark.engine

CELLS = {"num_blocks": 110, "max_num_seqs": 4, "max_cached_seqs": 8, "flash_attn": "off", "split_tail": True}
"""Room for one prompt of 1,500 tokens."""
LONG = 1500
BLOCKS = (LONG - 1) // SIZE
BLOCK_BYTES = 16_500
"""A little more than a block has."""


@pytest.fixture
async def engines(words: Any) -> AsyncIterator[Engines]:
    made = Engines(words)
    yield made
    await made.close()


def host(engine: LlamaCpp) -> LevelStatistics:
    found = engine.statistics().host_tier
    assert found is not None
    return found


def disk(engine: LlamaCpp) -> LevelStatistics:
    found = engine.statistics().disk_tier
    assert found is not None
    return found


async def answer(engines: Engines, engine: LlamaCpp, request: Generate) -> Any:
    return heard(await engines.ask(engine, request).wait())


async def evict(engines: Engines, engine: LlamaCpp, seed: int = 1000) -> None:
    """By another prompt that needs all room."""
    await answer(engines, engine, asked(noise(seed, 1755), answer=2))


def assert_near(found: Any, wanted: Any) -> None:
    """The first token; what comes behind may differ, as a prompt that is cut elsewhere is computed to other bits."""
    assert found[0][0] == wanted[0][0]
    assert found[1][0][0] == pytest.approx(wanted[1][0][0], abs=0.05)


def exactly(found: Any, wanted: Any) -> None:
    """To the bit, where llama.cpp does so without tiers: on some CPUs bits depend on the cells that are free."""
    assert found == wanted


async def computed(engines: Engines, engine: LlamaCpp, request: Generate) -> tuple[Any, int]:
    """The answer, and how many tokens of the prompt were computed."""
    before = engine.statistics().computed_total
    found = await answer(engines, engine, request)
    await engines.idle(engine)
    return found, engine.statistics().computed_total - before - 11


async def kept(engines: Engines, words: Any, seed: int, **tiers: Any) -> tuple[LlamaCpp, Generate, Any]:
    """An engine with a tier that has all blocks of a prompt, what was asked for, and the answer."""
    engine = await engines.start(**CELLS, **tiers, kv_offload_after=1)
    request = asked(noise(seed, LONG))
    wanted = await answer(engines, engine, request)
    level = disk if "kv_disk_gb" in tiers else host
    await words.until(lambda: level(engine).stored >= BLOCKS)
    return engine, request, wanted


@pytest.mark.parametrize("tier", ["host", "disk", "both"])
async def test_a_prefix_that_fell_out_of_the_device_comes_back_with_the_same_bits(
    engines: Engines, words: Any, tmp_path: Path, tier: str
) -> None:
    tiers: dict[str, Any] = {"kv_disk_path": str(tmp_path / "kv")}
    if tier != "disk":
        tiers["kv_host_gb"] = 0.1 if tier == "host" else 8 * BLOCK_BYTES / 1e9
    if tier != "host":
        tiers["kv_disk_gb"] = 0.1
    engine, alone = await engines.start(**CELLS, **tiers), await engines.start(**CELLS)
    request = asked(noise(1, LONG), temperature=1.3, seed=7)
    wanted = await answer(engines, alone, request)
    assert await answer(engines, engine, request) == wanted
    await evict(engines, alone)
    check = exactly if await answer(engines, alone, request) == wanted else assert_near
    await evict(engines, engine)
    assert engine.uncached(engine.hashes(request).blocks, LONG) >= LONG - 8 * SIZE, "asked for once: not kept"
    check((await computed(engines, engine, request))[0], wanted)
    level = host if tier == "host" else disk
    await words.until(lambda: level(engine).stored == BLOCKS)
    for seed in (1001, 1002):
        await evict(engines, engine, seed)
        assert engine.uncached(engine.hashes(request).blocks, LONG) == LONG - BLOCKS * SIZE
        found, count = await computed(engines, engine, request)
        check(found, wanted)
        assert abs(count - (LONG - BLOCKS * SIZE)) <= 1, "the last step may be one too many"
    now = engine.statistics()
    assert now.imported_blocks == 2 * BLOCKS
    assert (now.refused_blocks, level(engine).failed, level(engine).late) == (0, 0, 0)
    load = engine.load()
    assert 0 < load.host_ms < load.prefill_ms, "what routers are told"
    assert (load.disk_ms > load.host_ms) == (tier != "host")
    assert now.hit_rate == pytest.approx(2 * BLOCKS * SIZE / (4 * LONG + 3 * 1755)), "what was loaded counts as found"
    if tier == "both":
        assert host(engine).bytes <= 8 * BLOCK_BYTES
        assert host(engine).loaded + disk(engine).loaded == 2 * BLOCKS
        assert disk(engine).loaded >= 2 * (BLOCKS - 8)


async def test_the_next_worker_has_the_files_of_the_one_before(engines: Engines, words: Any, tmp_path: Path) -> None:
    files: dict[str, Any] = {"kv_disk_gb": 0.1, "kv_disk_path": str(tmp_path)}
    settings = {**CELLS, **files, "kv_offload_after": 1}
    first, request, wanted = await kept(engines, words, 2, **files)
    await first.close()
    engines.all.remove(first)
    second = await engines.start(**settings)
    assert disk(second).blocks >= BLOCKS
    [below] = [event for event in second.snapshot() if isinstance(event, TierStored)]
    assert set(engine_blocks(second, request)) <= set(below.blocks)
    found, count = await computed(engines, second, request)
    assert found == wanted
    assert abs(count - (LONG - BLOCKS * SIZE)) <= 1
    other = await engines.start(**{**settings, "cache_type_k": "f32"})
    assert disk(other).blocks == 0, "another layout"
    assert (await computed(engines, other, request))[1] >= LONG


def engine_blocks(engine: LlamaCpp, request: Generate) -> list[int]:
    return engine.hashes(request).blocks[:BLOCKS]


async def test_a_prompt_for_another_worker_comes_from_its_tier(engines: Engines, words: Any) -> None:
    engine = await engines.start(**CELLS, kv_host_gb=0.1, kv_offload_after=1)
    request = asked(noise(9, LONG))
    wanted = await Exported(engine, request).wait()
    await words.until(lambda: host(engine).stored >= BLOCKS)
    await evict(engines, engine)
    before = engine.statistics().computed_total
    assert await Exported(engine, request).wait() == wanted
    await engines.idle(engine)
    assert engine.statistics().computed_total == before


async def test_files_that_are_wrong_are_computed_instead(engines: Engines, words: Any, tmp_path: Path) -> None:
    engine, request, wanted = await kept(engines, words, 3, kv_disk_gb=0.1, kv_disk_path=str(tmp_path))
    names = engine_blocks(engine, request)
    [file] = tmp_path.rglob(f"{names[50]:016x}.kv")
    data = bytearray(file.read_bytes())
    data[2000] ^= 4
    file.write_bytes(data)
    await evict(engines, engine)
    found, count = await computed(engines, engine, request)
    assert_near(found, wanted)
    assert abs(count - (LONG - 50 * SIZE)) <= 1
    assert disk(engine).failed == 1


async def test_a_folder_that_goes_away_is_counted_and_nothing_else(
    engines: Engines, words: Any, tmp_path: Path
) -> None:
    engine, request, wanted = await kept(engines, words, 10, kv_disk_gb=0.1, kv_disk_path=str(tmp_path / "kv"))
    files: Any = engine.tiers.levels[0] if engine.tiers is not None else None
    await words.until(lambda: not files._pending)
    shutil.rmtree(tmp_path / "kv")
    await evict(engines, engine)
    await words.until(lambda: disk(engine).failed > 0)
    found, count = await computed(engines, engine, request)
    assert_near(found, wanted)
    assert abs(count - LONG) <= 1
    assert engine.uncached(engine.hashes(request).blocks, LONG) <= SIZE, "in the device"
    assert engine_blocks(engine, request)[0] not in files, "known to be lost"


async def test_bytes_that_llamacpp_refuses_are_computed_and_not_tried_again(engines: Engines, words: Any) -> None:
    engine, request, wanted = await kept(engines, words, 4, kv_host_gb=0.1)
    names = engine_blocks(engine, request)
    assert engine.tiers is not None
    level: Any = engine.tiers.levels[0]
    level._data[names[30]] = level._data[names[31]]
    await evict(engines, engine)
    assert_near((await computed(engines, engine, request))[0], wanted)
    assert engine.statistics().refused_blocks == 1
    assert host(engine).failed == 1
    await words.until(lambda: names[30] in level)
    await evict(engines, engine)
    assert_near((await computed(engines, engine, request))[0], wanted)
    assert engine.statistics().refused_blocks == 1


async def test_a_disk_that_does_not_answer_costs_its_wait_alone(
    engines: Engines, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, request, wanted = await kept(engines, words, 5, kv_disk_gb=0.1, kv_disk_path=str(tmp_path))
    await evict(engines, engine)
    assert engine.tiers is not None
    level: Any = engine.tiers.levels[0]
    reading: list[Any] = []
    monkeypatch.setattr(level, "read", lambda name, told: reading.append((name, told)))
    asking = engines.ask(engine, request)
    await words.until(lambda: reading)
    other = await answer(engines, engine, asked(noise(6, 40), answer=30))
    assert len(other[0]) == 30, "it is not held up"
    assert heard(await asking.wait())[0][:1] == wanted[0][:1]
    assert disk(engine).late == 1
    asked_for = len(reading)
    await evict(engines, engine)
    assert (await computed(engines, engine, request))[1] >= LONG
    assert (len(reading), disk(engine).late) == (asked_for, 1), "the next one does not wait"


async def test_others_run_while_blocks_come_and_go(engines: Engines, tmp_path: Path) -> None:
    """Everything at once, in room for less than half of it; each answer is that of an engine with room for all."""
    tiers = {"kv_host_gb": 30 * BLOCK_BYTES / 1e9, "kv_disk_gb": 0.1, "kv_disk_path": str(tmp_path)}
    small = {**CELLS, "num_blocks": 60, "max_num_batched_tokens": 64, "n_ubatch": 64}
    engine, alone = await engines.start(**small, **tiers, kv_offload_after=1), await engines.start(flash_attn="off")
    requests = [asked(noise(seed % 7 + 20, 100 + 70 * (seed % 7)), answer=8) for seed in range(28)]
    wanted = {request.token_ids: await answer(engines, alone, request) for request in requests[:7]}
    for _ in range(2):
        answers = [engines.ask(engine, request) for request in requests]
        for number, one in enumerate(answers):
            if number % 9 == 4:
                one.stream.cancel()
        for number, (request, one) in enumerate(zip(requests, answers, strict=True)):
            if number % 9 != 4:
                assert_near(heard(await one.wait()), wanted[request.token_ids])
    await engines.idle(engine)
    now = engine.statistics()
    assert now.imported_blocks > 0
    assert (now.refused_blocks, host(engine).failed, disk(engine).failed, disk(engine).late) == (0, 0, 0, 0)


async def test_a_block_is_told_in_a_tier_before_it_leaves_the_device(engines: Engines, words: Any) -> None:
    engine = await engines.start(**CELLS, kv_host_gb=0.1, kv_offload_after=1)
    told = engines.told
    request = asked(noise(8, LONG))
    await answer(engines, engine, request)
    await words.until(lambda: host(engine).stored >= BLOCKS)
    await evict(engines, engine)
    for name in engine_blocks(engine, request):
        [below] = [n for n, event in enumerate(told) if isinstance(event, TierStored) and name in event.blocks]
        gone = [n for n, event in enumerate(told) if isinstance(event, Removed) and name in event.blocks]
        here = [n for n, event in enumerate(told) if isinstance(event, Stored) and name in event.blocks]
        assert here[0] < below
        assert all(below < place for place in gone)
    assert not any(isinstance(event, TierRemoved) for event in told)


@pytest.mark.parametrize("idle", [2048, 160])
async def test_what_the_last_step_has_computed_is_copied_without_a_next_one(
    engines: Engines, words: Any, idle: int
) -> None:
    """Although the device keeps less of it."""
    cells = {**CELLS, "split_tail": False, "idle_tokens": idle}
    engine = await engines.start(**cells, kv_host_gb=0.1, kv_offload_after=1)
    await answer(engines, engine, asked(noise(1, 401), answer=1))
    await words.until(lambda: host(engine).stored == 25)
    await words.until(lambda: engine.statistics().cached_blocks == (25 if idle == 2048 else 10))


async def test_prompts_that_nobody_repeats_are_not_copied(engines: Engines) -> None:
    engine = await engines.start(**CELLS, kv_host_gb=0.1)
    for seed in range(4):
        await answer(engines, engine, asked(noise(seed, 600)))
    await asyncio.sleep(0.05)
    assert host(engine).stored == 0
