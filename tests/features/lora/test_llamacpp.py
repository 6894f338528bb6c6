"""Adapters that the real llama.cpp loads and unloads while it answers."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

import msgspec

from dynamod.actor import System
from dynamod.features.lora.changes import AdapterChange, AdapterRecord
from dynamod.message.discovery import Adapter
from dynamod.message.worker import LoadAdapter, Stops, UnloadAdapter
from tests.adapters import write_adapter

from ...engine.llamacpp.lora import folder, serve

__all__ = ["folder"]

pytestmark = pytest.mark.engine


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
    part = served.house.workers[-1].parts["lora"]

    async def change(at: float, name: str, path: str, loaded: bool = True, model: str = "m") -> list[str]:
        adapter = Adapter(name, str(folder / path))
        part.changes.merge(AdapterRecord((AdapterChange(model, adapter, at, loaded),)))
        await part.follow()
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


async def test_memory_of_an_unloaded_adapter_is_free_when_its_last_answer_is_over(
    words: Any, system: System, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamod.engine.llamacpp.adapter_store.LATE", 0.01)
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
