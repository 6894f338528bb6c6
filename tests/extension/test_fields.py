"""What a feature adds to requests, cards and records: the toy `colours`."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.messages import Explain
from dynamod.message.discovery import ModelCard
from dynamod.observe.frequent import write_waiting
from dynamod.worker.worker import Worker

pytestmark = pytest.mark.usefixtures("toys")


async def chat(url: str, **nvext: Any) -> tuple[int, Any]:
    body = {"model": "sample", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "nvext": nvext}
    async with aiohttp.ClientSession() as client, client.post(f"{url}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json()


async def test_a_member_of_nvext_a_section_of_cards_and_a_need(
    house: Any, serve: Any, until: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "dynamod.frontend")
    processor = await house.start()
    context = Worker.part_context

    def reddened(worker: Worker, engine: Any) -> Any:
        return replace(context(worker, engine), settings=SimpleNamespace(colour="red"))

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "part_context", reddened)
        red = await house.worker()
    await house.worker()
    await until(lambda: processor.cards and len(house.view.all_instances()) == 2)
    url = await serve()
    for _ in range(4):
        status, answer = await chat(url, colour="red")
        assert status == 200, answer
        (decision,) = await house.ref.ask(Explain(answer["id"]), timeout=5)
        assert (decision["chosen"], decision["colour"]) == (red.instance.instance_id, "red")
        assert [why for _, why in decision["excluded"]] == ["is not red"]
    write_waiting()
    lines = [one.getMessage() for one in caplog.records if "request id=" in one.getMessage()]
    assert [line.endswith(" colour=red") for line in lines] == [True] * 4
    status, answer = await chat(url, colour="blue")
    assert (status, answer["error"]["message"]) == (400, "no worker is blue")
    status, answer = await chat(url, colour="")
    assert (status, answer["error"]["param"]) == (400, "nvext.colour")
    assert (await chat(url))[0] == 200
    async with aiohttp.ClientSession() as client, client.get(f"{url}/openapi.json") as document:
        assert "colour" in (await document.json())["components"]["schemas"]["NvExt"]["properties"]


async def test_members_of_a_feature_that_is_off_are_refused(
    house: Any, serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-colours")
    processor = await house.start()
    await house.worker()
    await until(lambda: processor.cards)
    url = await serve()
    status, answer = await chat(url, colour="red")
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "nvext.colour", "feature_off")
    assert "feature 'colours', which is off" in answer["error"]["message"]
    assert (await chat(url))[0] == 200


def test_requests_have_the_fields_of_their_kind() -> None:
    endpoint = ChatCompletions()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "nvext": {"colour": "red", "top_k": 3}}
    asked: Any = endpoint.read(json.dumps(body).encode())[0]
    assert (asked.nvext.colour, asked.nvext.top_k) == ("red", 3)
    assert isinstance(asked, ChatCompletions.request)


def test_a_section_that_is_undecodable_counts_as_missing() -> None:
    from dynamod.features.colours.parts import Section  # type: ignore[import-not-found]

    for said in ({}, {"colours": {"colour": 7}}, {"colours": "red"}, {"other": {"colour": "red"}}):
        assert ModelCard("m", sections=said).section("colours", Section).colour == "grey"
