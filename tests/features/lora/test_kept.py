"""Adapters of models that can be asked for although nobody serves them."""

import asyncio
from typing import Any

import msgspec
import pytest

from dynamod import sample
from dynamod.discovery.keys import parked_key
from dynamod.features.lora.changes import AdapterChange, AdapterRecord
from dynamod.message.discovery import Adapter
from dynamod.message.errors import NotFound
from dynamod.message.pools import ParkedModel
from dynamod.preprocess.card import read_card


def changed(house: Any, at: float, name: str, *, loaded: bool = True) -> None:
    change = AdapterChange("sample", Adapter(name, f"/{name}", "bb"), at, loaded)
    house.processor.parts["lora"].changes.merge(AdapterRecord((change,)))


def park(house: Any) -> None:
    card = read_card(sample.path("sample"), name="sample")
    record = ParkedModel(
        card=msgspec.structs.replace(card, adapters=(Adapter("x", "/x"),)), place="dyn://n.Worker.generate", startup=1.0
    )
    house.processor.parts["on_demand"].record(parked_key(1, "Worker"), msgspec.json.encode(record))


async def test_a_request_for_one_waits_for_a_worker_of_the_model_below(house, until) -> None:
    wanted: list[tuple[str, bool]] = []
    await house.start()
    house.processor.parts["on_demand"].want = lambda name, waits: wanted.append((name, waits))
    park(house)
    await until(lambda: set(house.backend.models()) == {"sample", "x"})
    changed(house, 1.0, "y")
    assert set(house.backend.models()) == {"sample", "x", "y"}
    asked = [asyncio.ensure_future(house.ask(model=name, text=name, max_tokens=3)) for name in ("x", "y")]
    await until(lambda: wanted)
    assert wanted == [("sample", True)]
    worker = await house.worker(adapters=(Adapter("x", "/x", "aa"), Adapter("y", "/y", "bb")))
    for client in await asyncio.gather(*asked):
        assert (await client.wait()).error is None
    assert house.backend.models()["x"].salt == "aa"
    await house.worker(pool="prefill", types=())  # it answers nobody
    house.leave(worker)
    assert set(house.backend.models()) == {"sample", "x", "y"}
    again = asyncio.ensure_future(house.ask(model="x", max_tokens=3))
    await until(lambda: len(wanted) == 3)
    worker = await house.worker(adapters=(Adapter("x", "/x", "aa"),))
    assert (await (await again).wait()).error is None
    house.leave(worker)
    changed(house, 2.0, "y", loaded=False)
    changed(house, 2.0, "x", loaded=False)
    assert set(house.backend.models()) == {"sample"}


async def test_where_no_worker_has_it_nobody_waits(house, until) -> None:
    await house.start()
    park(house)
    await until(lambda: set(house.backend.models()) == {"sample", "x"})
    await house.worker()
    assert (await (await house.ask(max_tokens=3)).wait()).error is None
    with pytest.raises(NotFound, match="the workers of 'sample' do not have the adapter 'x'") as caught:
        await house.ask(model="x")
    assert caught.value.code == "adapter_not_found"


async def test_a_name_that_another_model_has_stays_that_models(house, until) -> None:
    await house.start()
    await house.worker(name="y")
    await until(lambda: "y" in house.backend.models())
    park(house)
    changed(house, 1.0, "y")
    await until(lambda: "x" in house.backend.models())
    assert house.backend.models()["y"].parent == ""


async def test_where_the_feature_is_off_those_of_the_settings_stay(house, until, monkeypatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-lora")
    wanted: list[tuple[str, bool]] = []
    await house.start()
    house.processor.parts["on_demand"].want = lambda name, waits: wanted.append((name, waits))
    park(house)
    await until(lambda: set(house.backend.models()) == {"sample", "x"})
    assert "lora" not in house.backend.parts
    asked = asyncio.ensure_future(house.ask(model="x", max_tokens=3))
    await until(lambda: wanted)
    await house.worker(adapters=(Adapter("x", "/x", "aa"), Adapter("y", "/y", "bb")))
    assert (await (await asked).wait()).error is None
    assert (await (await house.ask(model="y", max_tokens=3)).wait()).error is None
