"""Models of a processor: served, gone, loaded again, and not to be loaded."""

import asyncio
import threading
from typing import Any

import aiohttp

from dynamod.actor import Backoff
from dynamod.preprocess.model import Model

from .serving import ready


async def test_a_model_that_goes_and_comes_back(house, until) -> None:
    await house.start()
    for _ in range(2):
        member = await house.worker()
        await ready(until, house)
        client = await house.ask(text="x")
        await until(lambda member=member: member.open)
        house.leave(member)
        assert house.processor.cards == {}
        await client.answers()  # who leaves the registry finishes what is open
    assert [there for _, there in house.announced] == [True, False, True, False]


async def test_the_model_stays_while_one_worker_serves_it(house, until) -> None:
    await house.start()
    first, _ = await house.worker(), await house.worker()
    await ready(until, house)
    house.leave(first)
    assert "sample" in house.processor.cards
    await (await house.ask(text="x")).answers()
    assert house.announced == [("sample", True)]


async def test_a_model_that_goes_while_it_loads(house, until, monkeypatch) -> None:
    load, go, over = Model.load, threading.Event(), list[str]()

    def slow(card: Any, **more: Any) -> Model:
        try:
            if card.path != "nowhere":
                assert go.wait(10)
            return load(card, **more)
        finally:
            over.append(card.path)

    monkeypatch.setattr(Model, "load", slow)
    await house.start()
    first = await house.worker()
    house.leave(first)
    await house.worker(path="nowhere", mdc_sum="other")
    await until(lambda: over == ["nowhere"])
    go.set()
    await until(lambda: len(over) == 2)
    await asyncio.sleep(0.05)
    assert house.processor.cards == {}, "the tokenizer of the first must not serve the second"
    assert house.announced == []


async def test_a_request_for_a_model_that_is_being_loaded_may_come_again(house, serve, until, monkeypatch) -> None:
    load, go = Model.load, {name: threading.Event() for name in ("first", "second")}

    def slow(card: Any, **more: Any) -> Model:
        assert go[card.name].wait(10)
        return load(card, **more)

    monkeypatch.setattr(Model, "load", slow)
    await house.start()
    url = await serve()

    async def asked(model: str) -> tuple[int, str]:
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        async with aiohttp.ClientSession() as client, client.post(f"{url}/v1/chat/completions", json=body) as answer:
            found = await answer.json()
        assert (answer.status == 503) == ("Retry-After" in answer.headers)
        return answer.status, found["error"]["message"] if "error" in found else ""

    assert await asked("first") == (503, "no model is being served; start a worker")
    await house.worker(name="first")
    assert await asked("first") == (503, "the model `first` is being loaded")
    assert await asked("") == (503, "no model is served yet; being loaded: first")
    assert await asked("third") == (503, "no model is being served; start a worker")
    go["first"].set()
    await until(lambda: house.backend.askable())
    assert await asked("first") == (200, "")
    await house.worker(name="second")
    assert await asked("second") == (503, "the model `second` is being loaded")
    assert await asked("third") == (404, "the model `third` does not exist; served: first")
    go["second"].set()
    await until(lambda: len(house.backend.askable()) == 2)
    assert await asked("second") == (200, "")


async def test_a_model_that_cannot_be_loaded_is_said_in_the_log(house, until, caplog) -> None:
    await house.start()
    await house.worker(path="no/such/folder", mdc_sum="0" * 64)  # so that what it sends is not what it has announced
    await until(lambda: "cannot serve model sample" in caplog.text)
    assert "no/such/folder" in caplog.text
    assert "Traceback" not in caplog.text
    assert house.processor.cards == {}
    assert house.announced == []


async def test_a_model_that_could_not_be_loaded_is_loaded_again(house, until, monkeypatch, caplog) -> None:
    load, failures = Model.load, iter([OSError(24, "Too many open files"), OSError(24, "Too many open files")])

    def failing(card: Any, **more: Any) -> Model:
        error = next(failures, None)
        if error is not None:
            raise error
        return load(card, **more)

    monkeypatch.setattr(Model, "load", failing)
    monkeypatch.setattr("dynamod.ingress.model_loader.RELOAD", Backoff(initial=0.01))
    await house.start()
    await house.worker()
    await ready(until, house)
    assert next(failures, None) is None
    assert caplog.text.count("cannot serve model sample") == 1, "the same failure is said once"
    assert "Too many open files" in caplog.text


async def test_the_faster_tokenizer_is_loaded_for_a_model_that_stays(house, until, monkeypatch) -> None:
    found = []
    await house.start()
    for pause in (0.05, 3600.0, 0.05):
        monkeypatch.setattr("dynamod.ingress.model_loader.HASTEN_AFTER", pause)
        worker = await house.worker()
        await ready(until, house)
        found.append(house.processor.model("sample").tokenizer)
        if len(found) == 3:
            break
        if pause > 1:
            await (await house.ask(text="x")).answers()
        house.leave(worker)
        assert house.processor.cards == {}
    goes, waits, stays = found
    await until(lambda: stays.backend == "fastokens")
    assert goes.backend == waits.backend == "tokenizers"
