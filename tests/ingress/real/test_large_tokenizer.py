"""A large tokenizer is loaded while the answers of another model are streamed."""

import asyncio
from typing import Any

from dynamod.engine.echo import DELAY
from dynamod.preprocess.model import Model
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer

from ...preprocess.large_models import write_model

LONG = "All of this comes back, one token at a time. " * 20


async def test_other_streams_go_on_while_a_large_tokenizer_is_loaded(
    house, until, pace, tmp_path, monkeypatch, caplog
) -> None:
    folder = await asyncio.to_thread(write_model, tmp_path / "large", 60_000)
    monkeypatch.setattr("dynamod.preprocess.tokenizer_process.LARGE", 1_000_000)
    load, loaded, built = Model.load, list[str](), list[str]()

    def recorded(card: Any, **more: Any) -> Model:
        loaded.append(card.name)
        model = load(card, **more)
        built.append(f"{card.name}: {model.tokenizer.backend}")
        return model

    monkeypatch.setattr(Model, "load", recorded)
    pace.setenv(DELAY, "5")
    await house.start()
    await house.worker()
    await until(lambda: "sample" in house.processor.cards)
    stream = await house.ask(text=LONG)
    await until(lambda: stream.counts[0] > 2)
    await house.worker(name="large", path=str(folder), mdc_sum="large")
    await until(lambda: "large" in loaded)
    before = stream.counts[0]
    await until(lambda: "large" in house.processor.cards)
    during = stream.counts[0]
    assert during > before, "the stream goes on"
    assert built == ["sample: tokenizers", "large: process"]
    (first,) = await (await house.ask(model="large", prompt="Hello there")).answers()
    tokenizer = house.processor.model("large").tokenizer
    await until(lambda: tokenizer.backend == "fastokens")
    (second,) = await (await house.ask(model="large", prompt="Hello there")).answers()
    assert first == second
    assert LONG in (await stream.answers())[0]
    here = await asyncio.to_thread(Tokenizer.from_source, open_source(folder))
    assert tokenizer.encode(LONG) == here.encode(LONG)
    assert "has failed" not in caplog.text
