"""LoRA adapters in the real llama.cpp: texts alone and mixed, the prefix cache, loading and unloading."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

import msgspec

from dynamod import sample
from dynamod.actor import System
from dynamod.discovery.adapters import AdapterChanges
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.discovery import Adapter, AdapterChange, AdapterRecord
from dynamod.message.kv_events import Stored
from dynamod.message.worker import Generate, LoadAdapter, Sampling, Stops, UnloadAdapter
from dynamod.worker.adapters import FollowedAdapters
from tests.adapters import write_adapter

pytestmark = pytest.mark.engine

PATH = sample.path("sample.gguf")
PROMPT = [894, 672, 630, 783] * 20
"""With this and SEEDS the best token is clearly the best: sums in another order do not change the text."""
SEEDS = {"one": 9, "two": 18, "three": 3}
COUNT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("adapters")
    for name, seed in SEEDS.items():
        write_adapter(made / f"{name}.gguf", seed)
    return made


class Served:
    """A worker with the engine, and its adapters."""

    def __init__(self, house: Any) -> None:
        self.house = house
        self.engine: LlamaCpp = house.workers[-1]._engine

    def asked(self, name: str = "", prompt: list[int] | None = None, **more: Any) -> Generate:
        adapter = next((one for one in self.engine.card().adapters if one.name == name), None)
        assert (adapter is None) == (name == "")
        ids, stops = tokens.pack(PROMPT if prompt is None else prompt), Stops(max_tokens=COUNT)
        return Generate("r", "m", ids, stops, Sampling(temperature=0.0), adapter=adapter, **more)

    async def text(self, name: str = "", prompt: list[int] | None = None, **more: Any) -> list[int]:
        answer = await self.house.ask(self.asked(name, prompt, **more)).wait(30)
        assert answer.finish == "length", answer
        return list(answer.ids)


async def serve(words: Any, system: System, folder: Path, *names: str, scale: float = 1.0, **arguments: Any) -> Served:
    adapters = tuple(Adapter(name, str(folder / f"{name}.gguf"), scale=scale) for name in names)
    options = EngineOptions("m", PATH, lora=adapters, arguments=arguments)
    return Served(await words.House(system, LlamaCpp, options).start("worker"))


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


async def test_they_are_loaded_and_unloaded_while_others_answer(words: Any, system: System, folder: Path) -> None:
    served = await serve(words, system, folder)
    base = await served.text()

    async def told(request: Any) -> Any:
        return await served.house.ask(request).wait(30)

    long = served.house.ask(msgspec.structs.replace(served.asked(), stops=Stops(max_tokens=400)))
    loaded = await told(LoadAdapter("r", Adapter("x", str(folder / "one.gguf"))))
    assert loaded.error is None, loaded
    assert [one.name for one in served.house.published[-1].adapters] == ["x"]
    first = await served.text("x")
    assert first != base
    refused = await told(LoadAdapter("r", Adapter("x", str(folder / "two.gguf"))))
    assert "loaded already" in str(refused.error.exception())
    stale = served.asked("x")
    assert (await told(LoadAdapter("r", Adapter("x", str(folder / "two.gguf")), True))).error is None
    second = await served.text("x")
    assert second not in (first, base)
    assert list((await told(stale)).ids) == first  # sent before, by somebody who did not know yet
    assert (await told(UnloadAdapter("r", "x"))).error is None
    assert served.house.published[-1].adapters == ()
    again = await told(UnloadAdapter("r", "x"))
    assert "'x' is not loaded" in str(again.error.exception())
    assert (await long.wait(60)).finish == "length"
    assert await served.text() == base


async def test_a_worker_follows_what_clients_have_loaded_elsewhere(
    words: Any, system: System, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(words, system, folder, "one")
    worker, changes = served.house.workers[-1], AdapterChanges()
    followed = FollowedAdapters(served.engine, changes, {"one"})

    async def change(at: float, name: str, path: str, loaded: bool = True, model: str = "m") -> list[str]:
        adapter = Adapter(name, str(folder / path))
        changes.merge(AdapterRecord((AdapterChange(model, adapter, at, loaded),)))
        await worker.follow_adapters(followed)
        return [one.name for one in served.house.published[-1].adapters]

    assert await change(1.0, "two", "two.gguf") == ["one", "two"]
    assert await change(1.0, "three", "three.gguf", model="other") == ["one", "two"]
    assert await change(1.0, "gone", "gone.gguf") == ["one", "two"]
    assert "cannot load the adapter gone: no adapter found at" in caplog.text
    before = await served.text("two")
    count = len(served.house.published)
    assert await change(2.0, "two", "two.gguf") == ["one", "two"]
    assert len(served.house.published) == count, "it is the same"
    assert await change(3.0, "two", "three.gguf") == ["one", "two"]
    assert await served.text("two") != before
    assert await change(4.0, "two", "three.gguf", loaded=False) == ["one"]
    assert await change(4.0, "one", "one.gguf", loaded=False) == ["one"], "it is to have this one always"
    assert await change(5.0, "one", "two.gguf") == ["one"]
    assert await served.text("one") == before


async def test_one_that_was_replaced_comes_back_as_it_was(words: Any, system: System, folder: Path) -> None:
    served = await serve(words, system, folder)
    file = folder / "changing.gguf"
    file.write_bytes((folder / "one.gguf").read_bytes())

    async def load(adapter: Adapter) -> Adapter:
        answer = await served.house.ask(LoadAdapter("r", adapter, True)).wait(30)
        assert answer.error is None, answer
        return msgspec.json.decode(answer.deltas[-1].items[0], type=Adapter)

    before = await load(Adapter("x", str(file)))
    text = await served.text("x")
    file.write_bytes((folder / "two.gguf").read_bytes())
    assert (await load(Adapter("x", str(file)))).digest != before.digest
    assert await served.text("x") != text
    file.unlink()
    assert await load(before) == before
    assert await load(before) == before
    assert await served.text("x") == text


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


async def test_memory_of_an_unloaded_adapter_is_free_when_its_last_answer_is_over(
    words: Any, system: System, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamod.engine.llamacpp.engine.LATE", 0.01)
    served = await serve(words, system, folder, "one", "two")
    request = served.asked("one")
    long = served.house.ask(msgspec.structs.replace(request, stops=Stops(max_tokens=1500)))
    await words.until(lambda: long.ids)
    assert (await served.house.ask(UnloadAdapter("u", "one")).wait(30)).error is None
    model = served.engine._model
    assert model is not None
    await asyncio.sleep(0.1)
    assert request.salt in model.adapters._loaded
    assert not long.done.is_set()
    assert (await long.wait(60)).finish == "length"
    await words.until(lambda: request.salt not in model.adapters._loaded)
    late = await served.house.ask(request).wait(30)
    assert "'one' is not loaded here any more" in str(late.error.exception())
    await served.text("two")


async def test_an_engine_without_adapters_loads_none(words: Any, system: System, folder: Path) -> None:
    house = await words.mocker(system)
    found = await house.ask(LoadAdapter("r", Adapter("x", str(folder / "one.gguf")))).wait(30)
    assert "engine mocker, as it has been started, loads no LoRA adapters" in str(found.error.exception())


async def test_files_that_are_none_are_refused_while_it_runs(words: Any, system: System, folder: Path) -> None:
    served = await serve(words, system, folder)
    write_adapter(folder / "foreign.gguf", 1, architecture="qwen2")
    write_adapter(folder / "wide.gguf", 1, width=128)
    for path, why in (
        ("gone.gguf", "no adapter found at"),
        ("foreign.gguf", "for the architecture qwen2, the model is llama"),
        ("wide.gguf", "llama.cpp cannot load the adapter x"),
    ):
        found = await served.house.ask(LoadAdapter("r", Adapter("x", str(folder / path)))).wait(30)
        assert why in str(found.error.exception()), found.error
    found = await served.house.ask(LoadAdapter("r", Adapter("m", str(folder / "one.gguf")))).wait(30)
    assert "'m' is the name of the model" in str(found.error.exception())
    assert served.engine.card().adapters == ()
