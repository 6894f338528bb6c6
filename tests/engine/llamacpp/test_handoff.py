"""Blocks of prompts between two real engines: the bits of one engine alone, and nothing that is damaged is served."""

import asyncio
import dataclasses
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from xxhash import xxh3_64_digest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.errors import BadRequest, EngineFailed

from .exchange import PATH, SIZE, Engines, Exported, asked, heard, noise, put, three

pytestmark = pytest.mark.engine


@pytest.fixture
async def engines(words: Any) -> AsyncIterator[Engines]:
    made = Engines(words)
    yield made
    await made.close()


@pytest.mark.parametrize("flash", ["on", "off"])
async def test_the_answer_has_the_bits_of_one_engine_alone(engines: Engines, flash: str) -> None:
    """With flash attention blocks depend on the cells they were computed in: engines agree only while they are new.

    Without it only answers do, and these two have had the same requests.
    """
    alone, prefill, decode = await three(engines, flash_attn=flash)
    assert prefill.layout() == decode.layout() != ""
    assert decode.card().capabilities.handoff
    for seed in range(14):
        if flash == "on" and seed:
            alone, prefill, decode = await three(engines, flash_attn=flash)
        how = {"temperature": 1.5, "seed": seed, "top_p": 0.95} if seed % 2 else {}
        prior = noise(seed + 50, 9) if seed % 3 == 0 else []
        request = asked(noise(seed, 17 + 33 * seed), prior=prior, **how)
        length = tokens.count(request.token_ids) + len(prior)
        count = (length - 1) // SIZE
        blocks = await Exported(prefill, request).wait()
        assert [name for name, _ in blocks] == block_hashes(request.token_ids + request.prior_output, SIZE)[:count]
        before = decode.statistics()
        held, answer = engines.hold(decode, request)
        assert held.first == 0
        assert put(held, blocks)
        assert held.first == count
        held.go()
        held.go()
        assert heard(await answer.wait()) == heard(await engines.ask(alone, request).wait())
        now = decode.statistics()
        computed = now.computed_total - before.computed_total - (length - count * SIZE)
        assert computed in (11, 12), "but for the answer only what no block has; the last step may be one too many"
        assert decode.uncached([name for name, _ in blocks], length) <= SIZE, "they are found there from now on"
        assert now.imported_blocks - before.imported_blocks == count
        assert (now.refused_blocks, now.preemptions) == (0, 0)
    for engine in engines.all:
        await engines.idle(engine)


async def test_an_answer_goes_on_with_the_bits_of_the_one_that_was_whole(engines: Engines) -> None:
    exact = {"split_tail": True, "stepwise_continuation": True, "flash_attn": "off", "n_threads": 1}
    alone, other = await engines.start(**exact), await engines.start(**exact)
    for seed, length in enumerate((40, 101, 160)):
        drawn = {"temperature": 1.0, "seed": seed}
        ids, logprobs = heard(await engines.ask(alone, asked(noise(seed, length), answer=120, **drawn)).wait())
        request = asked(noise(seed, length), answer=50, prior=ids[:70], **drawn)
        assert heard(await engines.ask(other, request).wait()) == (ids[70:], logprobs[70:])


async def test_other_sequences_run_beside_it(engines: Engines) -> None:
    prefill, decode = await engines.start(), await engines.start()
    alone = await engines.start(split_tail=True)
    running = [engines.ask(decode, asked(noise(seed + 90, 40), answer=300)) for seed in range(3)]
    requests = [asked(noise(seed, 100 + 60 * seed)) for seed in range(6)]
    exports = [Exported(prefill, request) for request in requests]
    held = [engines.hold(decode, request) for request in requests]
    for (one, _answer), export in zip(held, exports, strict=True):
        for block in await export.wait():
            assert one.put(*block)
            await asyncio.sleep(0)
        one.go()
    for request, (_one, answer) in zip(requests, held, strict=True):
        ids, logprobs = heard(await answer.wait())
        wanted, others = heard(await engines.ask(alone, request).wait())
        assert ids[:1] == wanted[:1]
        assert logprobs[0][0] == pytest.approx(others[0][0], abs=0.05), "the batch differs"
    assert decode.statistics().imported_blocks == sum(len(export.blocks) for export in exports)
    for answer in running:
        assert len((await answer.wait()).ids) == 300


async def test_what_is_here_already_is_not_asked_for(engines: Engines) -> None:
    prefill, decode = await engines.start(), await engines.start()
    shared, request = noise(1, 80), asked([*noise(1, 80), *noise(2, 100)])
    for engine in (prefill, decode):
        await engines.ask(engine, asked([*shared, 7], answer=1)).wait()
    before = prefill.statistics().computed_total
    blocks = await Exported(prefill, request).wait()
    assert len(blocks) == 11
    assert prefill.statistics().computed_total - before == (11 - 5) * SIZE, "the export used what was cached"
    again = await Exported(prefill, request).wait()
    assert [name for name, _ in again] == [name for name, _ in blocks]
    assert prefill.statistics().computed_total - before == (11 - 5) * SIZE
    held, answer = engines.hold(decode, request)
    assert held.first == 5
    assert held.put(*blocks[4]), "one that is here is passed over"
    assert put(held, blocks)
    held.go()
    assert len((await answer.wait()).ids) == 12
    assert decode.statistics().imported_blocks == 6


async def test_equal_exports_at_once_are_computed_once(engines: Engines) -> None:
    prefill = await engines.start(max_num_batched_tokens=64, n_ubatch=64)
    request = asked(noise(3, 400))
    first, second = Exported(prefill, request), Exported(prefill, request)
    assert [name for name, _ in await first.wait()] == [name for name, _ in await second.wait()]
    assert prefill.statistics().computed_total == 24 * SIZE
    assert prefill.statistics().exported_blocks == 48


async def test_blocks_come_while_the_prompt_is_computed(engines: Engines, words: Any) -> None:
    prefill = await engines.start(max_num_batched_tokens=64, n_ubatch=64)
    export = Exported(prefill, asked(noise(4, 1200)))
    await words.until(lambda: export.blocks)
    assert prefill.statistics().computed_total < 600, "the first blocks did not wait for the last"
    await export.wait()
    assert len(export.blocks) == 74


@pytest.mark.parametrize("fault", ["damaged", "truncated", "swapped", "empty", "other layout"])
async def test_bytes_that_are_wrong_are_computed_instead(engines: Engines, fault: str) -> None:
    alone, prefill, decode = await three(engines)
    request, told = asked(noise(5, 150)), engines.told
    blocks = await Exported(prefill, request).wait()
    name, data = blocks[4]
    other = (await Exported(prefill, asked(noise(6, 150))).wait())[4][1]
    wrong = {
        "damaged": data[:-900] + bytes([data[-900] ^ 1]) + data[-899:],
        "truncated": data[:-1],
        "swapped": other,
        "empty": b"",
        "other layout": data + bytes(64),
    }[fault]
    held, answer = engines.hold(decode, request)
    good = [held.put(*block) for block in [*blocks[:4], (name, wrong), *blocks[5:]]]
    assert all(good[:5])
    await asyncio.sleep(0.1)
    assert held.first == 4
    assert not held.put(*blocks[4]), "it is not asked for again"
    assert [block for event in told for block in event.blocks] == [name for name, _ in blocks[:4]]
    held.go()
    ids, logprobs = heard(await answer.wait())
    wanted, others = heard(await engines.ask(alone, request).wait())
    assert ids[0] == wanted[0]
    assert logprobs[0][0] == pytest.approx(others[0][0], abs=0.05)
    totals = decode.statistics()
    assert (totals.imported_blocks, totals.refused_blocks) == (4, 1)
    await engines.idle(decode)
    assert {block for event in told for block in event.blocks} == set(decode._cells.pool.names())


@pytest.mark.parametrize("positions", ["none", "other"])
async def test_bytes_that_llamacpp_refuses_are_computed_instead(engines: Engines, positions: str) -> None:
    """With a checksum that fits, as another program could make it."""
    prefill, decode = await engines.start(), await engines.start()
    request = asked(noise(5, 150))
    blocks = await Exported(prefill, request).wait()
    state = bytes(len(blocks[0][1]) - 8) if positions == "none" else blocks[1][1][:-8]
    held, answer = engines.hold(decode, request)
    assert held.put(blocks[0][0], state + xxh3_64_digest(state, blocks[0][0]))
    held.go()
    assert heard(await answer.wait())[0][0] == heard(await engines.ask(prefill, request).wait())[0][0]
    totals = decode.statistics()
    assert (totals.imported_blocks, totals.refused_blocks, totals.computed_total >= 150) == (0, 1, True)
    await engines.idle(decode)


async def test_another_name_is_not_taken(engines: Engines) -> None:
    prefill, decode = await engines.start(), await engines.start()
    request = asked(noise(7, 100))
    blocks = await Exported(prefill, request).wait()
    for wrong in (blocks[1], (blocks[0][0] + 1, blocks[0][1])):
        held, answer = engines.hold(decode, request)
        assert not held.put(*wrong)
        assert not held.put(*blocks[0]), "it said that no more are taken"
        held.cancel()
        assert answer.ids == []
    held, answer = engines.hold(decode, request)
    assert put(held, blocks[:3])
    assert not held.put(*blocks[4])
    held.go()
    assert len((await answer.wait()).ids) == 12
    assert decode.statistics().imported_blocks == 3
    assert not held.put(*blocks[3]), "it has been computed"
    await engines.idle(decode)


async def test_an_idle_engine_imports_and_computes_nothing(engines: Engines, words: Any) -> None:
    prefill, decode = await engines.start(), await engines.start()
    request = asked(noise(8, 100))
    blocks = await Exported(prefill, request).wait()
    held, answer = engines.hold(decode, request)
    assert put(held, blocks)
    await words.until(lambda: decode.statistics().imported_blocks == 6)
    assert decode.statistics().steps == decode.statistics().computed_total == 0
    assert decode.statistics().cached_blocks + decode.statistics().active_blocks == 7
    answer.stream.cancel()
    await engines.idle(decode)
    assert decode.statistics().cached_blocks == 6, "who cancels leaves what came"
    held.go()
    held.cancel()
    assert not held.put(*blocks[0])
    held, answer = engines.hold(decode, request)
    assert held.first == 6
    held.go()
    await answer.wait()
    assert decode.statistics().computed_total < 20


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancel_at_any_time_gives_all_back(engines: Engines, turns: int) -> None:
    prefill, decode = await engines.start(), await engines.start()
    request = asked(noise(9, 200), answer=50)
    blocks = await Exported(prefill, request).wait()
    for going in (False, True):
        held, answer = engines.hold(decode, request)
        for block in blocks[held.first : 3 * turns]:
            assert held.put(*block)
        if going:
            held.go()
        for _ in range(turns):
            await asyncio.sleep(0.001)
        answer.stream.cancel()
        await engines.idle(decode)
    assert heard(await engines.ask(decode, request).wait())[0] == heard(await engines.ask(prefill, request).wait())[0]
    export = Exported(prefill, asked(noise(10, 400)), stop_after=2 * turns + 1)
    await engines.ask(prefill, asked(noise(11, 30))).wait()
    await engines.idle(prefill)
    assert len(export.blocks) == 2 * turns + 1
    assert export.ends == []
    early = Exported(prefill, asked(noise(12, 400)))
    early.cancel()
    early.cancel()
    await engines.ask(prefill, asked(noise(13, 30))).wait()
    assert (early.blocks, early.ends) == ([], [])


async def test_without_room_it_waits_and_is_computed(engines: Engines, words: Any) -> None:
    prefill, decode = await engines.start(), await engines.start(num_blocks=20, max_num_seqs=4)
    request = asked(noise(14, 100))
    blocks = await Exported(prefill, request).wait()
    big = engines.ask(decode, asked(noise(15, 270), answer=40))
    await words.until(lambda: big.ids)
    held, answer = engines.hold(decode, request)
    assert not held.put(*blocks[0])
    held.go()
    assert len((await big.wait()).ids) == 40
    assert len((await answer.wait()).ids) == 12
    assert decode.statistics().imported_blocks == 0


async def test_held_ones_give_way_and_find_their_blocks_again(engines: Engines, words: Any) -> None:
    prefill, decode = await engines.start(), await engines.start(num_blocks=20, max_num_seqs=4)
    request = asked(noise(16, 100))
    blocks = await Exported(prefill, request).wait()
    grows = engines.ask(decode, asked(noise(17, 150), answer=100))
    await words.until(lambda: grows.ids)
    held, answer = engines.hold(decode, request)
    assert put(held, blocks[:4])
    await grows.wait()
    assert decode.statistics().preemptions == 1
    assert not held.put(*blocks[4]), "it had to give way"
    assert 0 < held.first <= 4
    held.go()
    ids, _ = heard(await answer.wait())
    assert ids == heard(await engines.ask(prefill, request).wait())[0]
    await engines.idle(decode)


async def test_a_held_one_does_not_stop_who_waits(engines: Engines) -> None:
    prefill, decode = await engines.start(), await engines.start(num_blocks=20, max_num_seqs=4)
    request = asked(noise(18, 200))
    blocks = await Exported(prefill, request).wait()
    held, answer = engines.hold(decode, request)
    assert put(held, blocks[:2])
    assert len((await engines.ask(decode, asked(noise(19, 250), answer=20)).wait()).ids) == 20
    held.go()
    assert len((await answer.wait()).ids) == 12


async def test_exports_without_blocks_and_bad_ones_end_at_once(engines: Engines) -> None:
    prefill = await engines.start()
    for ids in ([5], noise(20, SIZE)):
        export = Exported(prefill, asked(ids))
        assert (export.blocks, export.ends) == ([], [None])
        export.cancel()
    for ids in ([], [5000] * 40, noise(21, 3000)):
        export = Exported(prefill, asked(ids))
        [error] = export.ends
        assert isinstance(error, BadRequest)
    assert len(await Exported(prefill, asked(noise(22, SIZE + 1))).wait()) == 1
    await engines.idle(prefill)


async def test_an_export_that_cannot_be_computed_says_so(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = await engines.start()
    model = prefill._model
    assert model is not None
    real = model.step

    def step(operations: Any, work: Any, *adapter: str) -> Any:
        spoilt = [dataclasses.replace(one, ids=[10**6]) if 77 in one.ids else one for one in work]
        return real(operations, spoilt, *adapter)

    monkeypatch.setattr(model, "step", step)
    good = Exported(prefill, asked([78] * 200))
    bad = Exported(prefill, asked([77] * 200))
    assert len(await good.wait()) == 12
    async with asyncio.timeout(10):
        await bad.ended.wait()
    [error] = bad.ends
    assert isinstance(error, EngineFailed)
    assert "worker's log" in str(error)
    assert bad.blocks == []


async def test_layouts_agree_only_where_bytes_mean_the_same(engines: Engines, tmp_path: Path) -> None:
    base = (await engines.start()).layout()
    assert len(base) == 32
    assert (await engines.start(max_num_seqs=4, n_ctx=1024, step_seconds=1.0, split_tail=True)).layout() == base
    changed = bytearray(PATH.read_bytes())
    changed[-10] ^= 1
    (tmp_path / "changed.gguf").write_bytes(changed)
    others = [
        await engines.start(block_size=32),
        await engines.start(flash_attn="off"),
        await engines.start(cache_type_k="q8_0"),
        await engines.start(rope_scale=2),
        await engines.start(tmp_path / "changed.gguf"),
    ]
    assert len({base, *[engine.layout() for engine in others]}) == 6


async def test_there_is_none_without_the_prefix_cache_or_a_sequence_for_it(engines: Engines) -> None:
    for arguments in ({"enable_prefix_caching": False}, {"max_num_seqs": 256}):
        engine = await engines.start(**arguments)
        assert not engine.card().capabilities.handoff
        assert engine.layout() == ""
        [error] = Exported(engine, asked(noise(23, 50))).ends
        assert "exports no blocks" in str(error)
        held, answer = engines.hold(engine, asked(noise(23, 50)))
        assert engine.statistics().waiting == 1
        assert not held.put(block_hashes(tokens.pack(noise(23, 50)), SIZE)[0], b"")
        held.go()
        assert len((await answer.wait()).ids) == 12
    engine = await engines.start(max_num_seqs=255)
    assert engine.card().capabilities.handoff
    assert msgspec.structs.asdict(engine.card().capabilities)["kv_events"]


async def test_exports_imports_cancels_and_faults_all_at_once_in_few_cells(engines: Engines) -> None:
    small: dict[str, Any] = {"num_blocks": 60, "max_num_seqs": 4, "max_cached_seqs": 4, "step_seconds": 0.01}
    alone, prefill, decode = await engines.start(), await engines.start(**small), await engines.start(**small)
    prompts = [noise(30 + number, 40 + 60 * number) for number in range(5)]
    prompts.append(prompts[-1][:200] + noise(40, 60))
    wanted = [heard(await engines.ask(alone, asked(prompt)).wait()) for prompt in prompts]

    async def one(chance: random.Random) -> None:
        number = chance.randrange(len(prompts))
        export = Exported(prefill, asked(prompts[number]), stop_after=chance.choice([2, 10**6, 10**6]))
        held, answer = engines.hold(decode, asked(prompts[number]))
        fault = chance.randrange(60)

        def refused() -> bool:
            there = export.blocks[held.first :]
            sent = [held.put(name, data[1:] if name % 60 == fault else data) for name, data in there]
            return not all(sent)

        await export.comes(refused, within=0.02 if chance.random() < 0.1 else 30.0)
        export.cancel()
        if chance.random() < 0.2:
            answer.stream.cancel()
            return
        held.go()
        _ids, logprobs = heard(await answer.wait())
        assert logprobs[0][1][0][0][1] == pytest.approx(wanted[number][1][0][1][0][0][1], abs=0.1)

    async def several(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(4):
            await one(chance)

    await asyncio.gather(*map(several, range(6)))
    totals = decode.statistics()
    assert totals.imported_blocks > 20
    for engine in (prefill, decode):
        await engines.idle(engine)
        assert engine.statistics().waiting == 0
