"""A frontend reads the tokenizer of a model while a worker of its node still loads the model."""

from typing import Any

import msgspec
import pytest

from dynamod import sample
from dynamod.discovery.keys import coming_key
from dynamod.message.discovery import Instance, ModelCard
from dynamod.preprocess.card import read_card
from dynamod.preprocess.model import Model

from .conftest import House


class Readings:
    """What has been read, by the checksums of the cards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sums: list[str] = []
        load = Model.load

        def recorded(card: ModelCard, **more: Any) -> Model:
            self.sums.append(card.mdc_sum)
            return load(card, **more)

        monkeypatch.setattr(Model, "load", recorded)


class Loading:
    """A worker that loads the sample, as the registry shows the worker."""

    def __init__(self, house: House, **card: Any) -> None:
        self.card = read_card(sample.path("sample"), name="sample", **card)
        self._registry, self._lease = house.registry, house.registry.grant()
        self._key = coming_key(Instance("dynamo", "backend", "generate", self._lease, {}))
        self._registry.put(self._key, msgspec.json.encode(self.card), self._lease)

    def over(self) -> None:
        self._registry.revoke(self._lease)


async def served(house: House, until: Any, **card: Any) -> None:
    await house.worker(**card)
    await until(lambda: "sample" in house.processor.cards)
    assert await (await house.ask(text="hello")).answers()


async def test_a_model_to_come_is_read_once(house, until, monkeypatch) -> None:
    readings = Readings(monkeypatch)
    first = Loading(house)
    await house.start()
    Loading(house)
    await until(lambda: readings.sums == [first.card.mdc_sum])
    assert house.processor.cards == {}
    assert house.announced == []
    await served(house, until, created=7)
    assert house.processor.model("sample").card.created == 7, "the card of the worker that serves"
    Loading(house)
    first.over()
    assert readings.sums == [first.card.mdc_sum]


async def test_another_model_of_that_name_is_read_again(house, until, monkeypatch) -> None:
    readings = Readings(monkeypatch)
    Loading(house, mdc_sum="0" * 64)
    await house.start()
    await until(lambda: readings.sums == ["0" * 64])
    await served(house, until)
    assert len(readings.sums) == 2


async def test_what_cannot_be_read_yet_is_told_when_it_is_served(house, until, monkeypatch, caplog) -> None:
    readings = Readings(monkeypatch)
    await house.start()
    coming = Loading(house, config_path="no/such/folder")
    await until(lambda: readings.sums == [coming.card.mdc_sum])
    assert "cannot serve" not in caplog.text
    await served(house, until)
    assert len(readings.sums) == 2


async def test_a_model_that_does_not_come_is_forgotten(house, until, monkeypatch) -> None:
    monkeypatch.setattr("dynamod.ingress.early.KEPT", 0.0)
    readings = Readings(monkeypatch)
    await house.start()
    coming = Loading(house)
    await until(lambda: readings.sums)
    early = house.processor.models.loader.early
    assert early._reading
    coming.over()
    await until(lambda: not early._reading and not early._places)
    await served(house, until)
    assert len(readings.sums) == 2
