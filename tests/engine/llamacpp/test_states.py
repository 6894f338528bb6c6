"""Whole states between two real engines, of models of three kinds: the bits of one engine alone."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_digest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.errors import BadRequest

from ...state_models import hybrid, recurrent, windowed
from .exchange import PATH, SIZE, Engines, Exported, asked, heard, noise, three

pytestmark = pytest.mark.engine

EXACT: dict[str, Any] = {"flash_attn": "on", "n_threads": 1}
"""Without flash attention the sums of a window depend on where its cells lie, which an import does not keep."""
KINDS = {"recurrent": (recurrent, {}), "windowed": (windowed, {"swa_full": False}), "hybrid": (hybrid, {})}


class Kind:
    """A model of one kind: its file, and the arguments of its workers."""

    def __init__(self, name: str, folder: Path) -> None:
        make, more = KINDS[name]
        self.name, self.path, self.arguments = name, make(folder / f"{name}.gguf"), {**EXACT, **more}


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return Kind(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture
async def engines(words: Any) -> AsyncIterator[Engines]:
    made = Engines(words)
    yield made
    await made.close()


async def test_a_state_waits_for_room_where_it_goes(engines: Engines, kind: Kind, words: Any) -> None:
    """Its size is not known before: room for the least is asked for. The slot is free meanwhile."""
    prefill = await engines.start(kind.path, **kind.arguments, max_num_seqs=1)
    request = asked(noise(1, 300))
    wanted = await Exported(prefill, request).wait()
    asks: list[Any] = []
    blocks: list[tuple[int, bytes]] = []
    ends: list[Exception | None] = []

    def room(size: int, then: Any) -> bool:
        assert 0 < size <= len(wanted[0][1])
        asks.append(then)
        return False

    prefill.export(request, lambda name, data: blocks.append((name, data)), ends.append, room)
    await words.until(lambda: asks)
    assert len((await engines.ask(prefill, asked(noise(2, 50))).wait()).ids) == 12, "others go on"
    assert (blocks, ends) == ([], [])
    [then] = asks
    then()
    await words.until(lambda: ends)
    assert (blocks, ends, len(asks)) == (wanted, [None], 1)
    await engines.idle(prefill)


async def test_the_answer_has_the_bits_of_one_engine_alone(engines: Engines, kind: Kind) -> None:
    alone, prefill, decode = await three(engines, kind.path, **kind.arguments)
    assert prefill.layout() == decode.layout() != ""
    can = decode.card().capabilities
    assert (can.handoff, can.role_switch, can.stored_blocks, can.kv_events) == (True, True, False, False)
    answers = set()
    for seed, length in enumerate((2, 3, SIZE, SIZE + 1, 5 * SIZE, 77, 300, 513, 514, 1100)):
        how = {"temperature": 1.5, "seed": seed, "top_p": 0.95} if seed % 2 else {}
        prior = noise(seed + 50, 9) if seed % 3 == 0 else []
        request = asked(noise(seed, length), prior=prior, **how)
        ids = request.token_ids + request.prior_output
        count = tokens.count(ids) - 1
        [(name, data)] = await Exported(prefill, request).wait()
        assert [name] == block_hashes(ids[: 4 * count], count)
        before = decode.statistics()
        held, answer = engines.hold(decode, request)
        assert (held.first, held.span) == (0, count)
        assert held.put(name, data)
        assert held.first == 1
        held.go()
        held.go()
        found = heard(await answer.wait())
        assert found == heard(await engines.ask(alone, request).wait())
        answers.add(tuple(found[0]))
        now = decode.statistics()
        assert now.computed_total - before.computed_total in (12, 13), "the last token of the prompt, and the answer"
        assert now.imported_blocks - before.imported_blocks == 1
        assert (now.refused_blocks, now.preemptions) == (0, 0)
    assert len(answers) == 10, "prompts make a difference"
    for engine in engines.all:
        await engines.idle(engine)


async def test_several_at_once_beside_others(engines: Engines, kind: Kind) -> None:
    alone, prefill, decode = await three(engines, kind.path, **kind.arguments)
    running = [engines.ask(decode, asked(noise(seed + 90, 40), answer=150)) for seed in range(3)]
    requests = [asked(noise(seed, 30 + 61 * seed), logit_bias={77: 100.0}) for seed in range(8)]
    exports = [Exported(prefill, request) for request in requests]
    held = [engines.hold(decode, request) for request in requests]
    for (one, _answer), export in zip(held, exports, strict=True):
        [block] = await export.wait()
        assert one.put(*block)
        await asyncio.sleep(0)
        one.go()
    for request, (_one, answer) in zip(requests, held, strict=True):
        ids, logprobs = heard(await answer.wait())
        wanted, others = heard(await engines.ask(alone, request).wait())
        assert ids == wanted == [77] * 12
        for (one, _), (other, _) in zip(logprobs, others, strict=True):
            assert one == pytest.approx(other, abs=0.05), "the batch differs"
    assert (decode.statistics().imported_blocks, decode.statistics().refused_blocks) == (8, 0)
    for answer in running:
        assert len((await answer.wait()).ids) == 150


@pytest.mark.parametrize("fault", ["damaged", "truncated", "swapped", "empty", "longer", "unsealed"])
async def test_bytes_that_are_wrong_are_computed_instead(engines: Engines, kind: Kind, fault: str) -> None:
    alone, prefill, decode = [await engines.start(kind.path, split_tail=True, **kind.arguments) for _ in range(3)]
    request = asked(noise(5, 150))
    [(name, data)] = await Exported(prefill, request).wait()
    [(_, other)] = await Exported(prefill, asked(noise(6, 150))).wait()
    wrong = {
        "damaged": data[:-900] + bytes([data[-900] ^ 1]) + data[-899:],
        "truncated": data[:-1],
        "swapped": other,
        "empty": b"",
        "longer": data + bytes(64),
        "unsealed": data[:-8],
    }[fault]
    held, answer = engines.hold(decode, request)
    assert held.put(name, wrong)
    assert not held.put(name, data), "it is not asked for again"
    held.go()
    assert heard(await answer.wait()) == heard(await engines.ask(alone, request).wait())
    totals = decode.statistics()
    assert (totals.imported_blocks, totals.refused_blocks) == (0, 1)
    assert totals.computed_total >= 150
    await engines.idle(decode)


@pytest.mark.parametrize("what", ["zeros", "other length", "half"])
async def test_bytes_that_llamacpp_refuses_are_computed_instead(engines: Engines, kind: Kind, what: str) -> None:
    """With a checksum that fits, as another program could make it."""
    alone, prefill, decode = [await engines.start(kind.path, split_tail=True, **kind.arguments) for _ in range(3)]
    request = asked(noise(5, 150))
    [(name, data)] = await Exported(prefill, request).wait()
    [(_, longer)] = await Exported(prefill, asked(noise(5, 151))).wait()
    state = {"zeros": bytes(len(data) - 8), "other length": longer[:-8], "half": data[: len(data) // 2]}[what]
    held, answer = engines.hold(decode, request)
    assert held.put(name, state + xxh3_64_digest(state, name))
    held.go()
    assert heard(await answer.wait()) == heard(await engines.ask(alone, request).wait())
    totals = decode.statistics()
    assert (totals.imported_blocks, totals.refused_blocks) == (0, 1)
    held, answer = engines.hold(decode, request)
    assert held.put(name, data)
    held.go()
    assert heard(await answer.wait()) == heard(await engines.ask(alone, request).wait()), "nothing was left in the slot"
    await engines.idle(decode)


async def test_another_name_is_not_taken(engines: Engines, kind: Kind) -> None:
    prefill, decode = [await engines.start(kind.path, **kind.arguments) for _ in range(2)]
    request = asked(noise(7, 100))
    [(name, data)] = await Exported(prefill, request).wait()
    [other] = await Exported(prefill, asked(noise(7, 99))).wait()
    for wrong in (other, (name + 1, data)):
        held, answer = engines.hold(decode, request)
        assert not held.put(*wrong)
        assert not held.put(name, data), "it said that none is taken"
        held.cancel()
        assert answer.ids == []
    held, answer = engines.hold(decode, request)
    assert not held.put(0, b"")
    held.go()
    assert not held.put(name, data), "it is computed"
    assert len((await answer.wait()).ids) == 12
    held, answer = engines.hold(decode, asked([9]))
    assert not held.put(name, data), "there is nothing before the only token"
    held.go()
    assert len((await answer.wait()).ids) == 12
    assert (decode.statistics().imported_blocks, decode.statistics().refused_blocks) == (0, 0)
    await engines.idle(decode)


async def test_states_that_wait_are_bounded(engines: Engines, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = [await engines.start(kind.path, **kind.arguments) for _ in range(2)]
    requests = [asked(noise(seed, 100)) for seed in range(3)]
    blocks = [(await Exported(prefill, request).wait())[0] for request in requests]
    size = len(blocks[0][1])
    monkeypatch.setattr("dynamod.engine.llamacpp.state_handoff.MOST_BYTES", 2 * size)
    held = [engines.hold(decode, request) for request in requests]
    taken = [one.put(*block) for (one, _), block in zip(held, blocks, strict=True)]
    assert taken == [True, True, False]
    held[0][0].cancel()
    again, answer = engines.hold(decode, requests[2])
    assert again.put(*blocks[2]), "one has left"
    for one in (again, held[1][0], held[2][0]):
        one.go()
    for one in (answer, held[1][1], held[2][1]):
        assert len((await one.wait()).ids) == 12
    assert decode.statistics().imported_blocks == 2
    await engines.idle(decode)


async def test_readers_that_leave_take_everything_along(engines: Engines, kind: Kind, words: Any) -> None:
    prefill, decode = [await engines.start(kind.path, max_num_seqs=2, **kind.arguments) for _ in range(2)]
    request = asked(noise(8, 1000))
    export = Exported(prefill, request)
    await words.until(lambda: prefill.statistics().running == 1)
    export.cancel()
    await engines.idle(prefill)
    assert (export.blocks, export.ends) == ([], [])
    [block] = await Exported(prefill, request).wait()
    first, _ = engines.hold(decode, request)
    first.cancel()
    assert not first.put(*block)
    running = [engines.ask(decode, asked(noise(seed, 40), answer=300)) for seed in range(2)]
    await words.until(lambda: all(one.ids for one in running))
    (waits, _), (stays, answer) = engines.hold(decode, request), engines.hold(decode, request)
    for one in (waits, stays):
        assert one.put(*block)
        one.go()
    assert decode.statistics().waiting == 2
    waits.cancel()
    for one in running:
        assert len((await one.wait()).ids) == 300
    assert len((await answer.wait()).ids) == 12
    assert decode.statistics().imported_blocks == 1
    held, answer = engines.hold(decode, request)
    assert held.put(*block)
    held.go()
    await asyncio.sleep(0)
    answer.stream.cancel()
    for engine in engines.all:
        await engines.idle(engine)


async def test_one_that_gives_way_behind_its_import_is_computed(engines: Engines, kind: Kind, words: Any) -> None:
    few = {"num_blocks": 20, "max_num_seqs": 4, **kind.arguments}
    prefill, decode = await engines.start(kind.path, **kind.arguments), await engines.start(kind.path, **few)
    request = asked(noise(16, 100), answer=60, logit_bias={77: 100.0})
    [block] = await Exported(prefill, request).wait()
    grows = engines.ask(decode, asked(noise(17, 150), answer=150))
    await words.until(lambda: grows.ids)
    held, answer = engines.hold(decode, request)
    assert held.put(*block)
    held.go()
    ids, logprobs = heard(await answer.wait())
    wanted, others = heard(await engines.ask(prefill, request).wait())
    assert ids == wanted
    for (one, _), (other, _) in zip(logprobs, others, strict=True):
        assert one == pytest.approx(other, abs=0.05)
    assert len((await grows.wait()).ids) == 150
    totals = decode.statistics()
    assert (totals.imported_blocks, totals.preemptions, totals.refused_blocks) == (1, 1, 0)
    await engines.idle(decode)


async def test_exports_of_one_token_and_bad_ones_end_at_once(engines: Engines, kind: Kind) -> None:
    prefill = await engines.start(kind.path, **kind.arguments)
    export = Exported(prefill, asked([5]))
    assert (export.blocks, export.ends) == ([], [None])
    for ids in ([], [5000] * 40, noise(21, 9000)):
        [error] = Exported(prefill, asked(ids)).ends
        assert isinstance(error, BadRequest)
    ends: list[Any] = []
    prefill.export_stored(asked(noise(22, 100)), lambda *_block: None, ends.append)
    assert isinstance(ends[0], BadRequest)
    await engines.idle(prefill)


async def test_layouts_agree_only_where_bytes_mean_the_same(engines: Engines, tmp_path: Path) -> None:
    kinds = {name: Kind(name, tmp_path) for name in KINDS}
    layouts = [(await engines.start(PATH)).layout()]
    for one in kinds.values():
        layouts.append((await engines.start(one.path, **one.arguments)).layout())
        same = await engines.start(one.path, max_num_seqs=256, n_ctx=1024, enable_prefix_caching=False, **one.arguments)
        assert same.layout() == layouts[-1]
        assert same.card().capabilities.handoff
    layouts.append((await engines.start(recurrent(tmp_path / "wide.gguf", width=96))).layout())
    window = kinds["windowed"].path
    layouts += [
        (await engines.start(window, **more)).layout()
        for more in (
            {"flash_attn": "on"},
            {"swa_full": False, "flash_attn": "off"},
            {"swa_full": False, "flash_attn": "on", "cache_type_k": "q8_0"},
        )
    ]
    assert all(len(layout) == 32 for layout in layouts)
    assert len(set(layouts)) == len(layouts) == 8


async def test_exports_imports_cancels_and_faults_all_at_once_in_few_cells(engines: Engines, kind: Kind) -> None:
    small = {"num_blocks": 60, "max_num_seqs": 4, "step_seconds": 0.01, **kind.arguments}
    alone, prefill, decode = [
        await engines.start(kind.path, **arguments) for arguments in (kind.arguments, small, small)
    ]
    prompts = [noise(30 + number, 40 + 60 * number) for number in range(6)]
    wanted = [heard(await engines.ask(alone, asked(prompt)).wait()) for prompt in prompts]

    async def one(chance: random.Random) -> None:
        number = chance.randrange(len(prompts))
        export = Exported(prefill, asked(prompts[number]), stop_after=chance.choice([1, 10**6, 10**6]))
        held, answer = engines.hold(decode, asked(prompts[number]))
        await export.comes(lambda: bool(export.blocks), within=0.02 if chance.random() < 0.1 else 30.0)
        export.cancel()
        for name, data in export.blocks:
            assert held.put(name, data[1:] if chance.random() < 0.2 else data)
        if chance.random() < 0.2:
            answer.stream.cancel()
            return
        held.go()
        if chance.random() < 0.2:
            await asyncio.sleep(0.005 * chance.random())
            answer.stream.cancel()
            return
        _ids, logprobs = heard(await answer.wait())
        assert logprobs[0][1][0][0][1] == pytest.approx(wanted[number][1][0][1][0][0][1], abs=0.1)

    async def several(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6):
            await one(chance)

    await asyncio.gather(*map(several, range(6)))
    totals = decode.statistics()
    assert totals.imported_blocks > 10
    assert totals.refused_blocks > 0
    for engine in (prefill, decode):
        await engines.idle(engine)
        assert engine.statistics().waiting == 0
