"""Tags of requests, labels of workers: the need, the metric, what is refused."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from dynamod.features.tags.ingress import DISTINCT, families, labels_of
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.openapi import document
from dynamod.ingress.api.table import endpoints
from dynamod.ingress.messages import Explain
from dynamod.message.discovery import ModelCard
from dynamod.observe.frequent import write_waiting

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


async def ask(url: str, tags: Any, path: str = "/v1/chat/completions", **fields: Any) -> tuple[int, Any]:
    body = {"model": "sample", "nvext": {"tags": tags}, **(fields or CHAT)}
    async with aiohttp.ClientSession() as client, client.post(url + path, json=body) as answer:
        return answer.status, await answer.json()


@pytest.fixture
async def labelled(house: Any, serve: Any, until: Any) -> Any:
    """Two workers, one with labels: the URL and this worker."""
    processor = await house.start()
    member = await house.worker(sections={"tags": {"labels": ["x", "eu"]}})
    await house.worker()
    await until(lambda: processor.cards and len(house.view.all_instances()) == 2)
    return SimpleNamespace(url=await serve(), worker=member)


async def test_a_label_decides_where_a_request_goes(labelled: Any, house: Any, caplog: Any) -> None:
    caplog.set_level("INFO", "dynamod.frontend")
    paths = (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "hello", "max_tokens": 4}))
    for path, fields in paths:
        for _ in range(2):
            status, answer = await ask(labelled.url, ["team=blue", "tag=x", "tag=eu", "tag=x"], path, **fields)
            assert status == 200, answer
            (decision,) = await house.ref.ask(Explain(answer["id"]), timeout=5)
            assert decision["chosen"] == labelled.worker.instance.instance_id
            assert decision["tags"] == "team=blue,tag=x,tag=eu"
            assert [why for _, why in decision["excluded"]] == ["lacks the label x"]
    write_waiting()
    lines = [one.getMessage() for one in caplog.records if "request id=" in one.getMessage()]
    assert [line.endswith(" tags=team=blue,tag=x,tag=eu") for line in lines] == [True] * 4


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 16, "store": False}),
    ],
)
async def test_the_other_dialects_take_tags_too(
    labelled: Any, house: Any, caplog: Any, path: str, fields: dict[str, Any]
) -> None:
    caplog.set_level("INFO", "dynamod.frontend")
    for _ in range(3):
        status, answer = await ask(labelled.url, ["team=blue", "tag=x"], path, **fields)
        assert status == 200, answer
    write_waiting()
    lines = [one.getMessage() for one in caplog.records if "request id=" in one.getMessage()]
    assert [line.endswith(" tags=team=blue,tag=x") for line in lines] == [True] * 3
    for line in lines:
        (decision,) = await house.ref.ask(Explain(line.split(" id=")[1].split()[0]), timeout=5)
        assert decision["chosen"] == labelled.worker.instance.instance_id
    status, answer = await ask(labelled.url, ["tag=y"], path, **fields)
    assert status == 400, answer
    assert "`nvext.tags` has tag=y, but no worker of the model has the label" in answer["error"]["message"]


async def test_a_text_engine_does_not_get_tags(house: Any, serve: Any, until: Any, words: Any) -> None:
    processor = await house.start()
    member = await house.worker(words.Manual, sections={"tags": {"labels": ["x"]}})
    await until(lambda: "sample" in processor.cards)
    asked = asyncio.create_task(ask(await serve(), ["team=blue", "tag=x"]))
    await until(lambda: member.engine.requests)
    sent = json.loads(member.engine.requests[0].body)
    assert sent == {"model": "sample", "nvext": {}, **CHAT}
    asked.cancel()


async def test_other_tags_route_nothing(labelled: Any, house: Any) -> None:
    chosen = set()
    for _ in range(4):
        status, answer = await ask(labelled.url, ["x", "team=x", "Tag=x"])
        assert status == 200, answer
        (decision,) = await house.ref.ask(Explain(answer["id"]), timeout=5)
        chosen.add(decision["chosen"])
    assert len(chosen) == 2


async def test_a_label_that_no_worker_has(labelled: Any, house: Any, until: Any) -> None:
    status, answer = await ask(labelled.url, ["tag=y"])
    error = answer["error"]
    assert (status, error["param"]) == (400, "nvext.tags")
    assert error["message"] == "`nvext.tags` has tag=y, but no worker of the model has the label; labels: eu, x"
    assert (await ask(labelled.url, ["tag=x"]))[0] == 200
    house.leave(labelled.worker)
    await until(lambda: len(house.view.all_instances()) == 1)
    status, answer = await ask(labelled.url, ["tag=x"])
    assert (status, answer["error"]["param"]) == (503, "nvext.tags")
    assert answer["error"]["message"].endswith("no worker of the model has the label; labels: none")


@pytest.mark.parametrize("tags", [["a"] * 9, ["a" * 65], [""], ["a b"], ["ä"], ["a\n"], [7], "tag=x", {"a": 1}])
async def test_tags_that_are_no_tags(labelled: Any, tags: Any) -> None:
    status, answer = await ask(labelled.url, tags)
    assert (status, answer["error"]["param"].removesuffix("[0]")) == (400, "nvext.tags")
    assert answer["error"]["message"].startswith("`nvext.tags"), answer
    assert "token" not in answer["error"]["message"]


async def test_the_metric_is_bounded(labelled: Any, house: Any) -> None:
    for number in range(DISTINCT + 4):
        assert (await ask(labelled.url, [f"n{number}", "blue"]))[0] == 200
    (family,) = await families(house.backend, "dynamo_frontend")
    counts = {one.labels["tag"]: one.value for one in family.samples}
    assert len(counts) == DISTINCT + 1
    assert (counts["n0"], counts["blue"], counts["other"]) == (1, DISTINCT + 4, 5)
    async with aiohttp.ClientSession() as client, client.get(f"{labelled.url}/metrics") as metrics:
        assert 'tagged_requests_total{tag="n0"} 1.0' in await metrics.text()


async def test_embeddings_refuse_tags(labelled: Any) -> None:
    status, answer = await ask(labelled.url, ["a"], "/v1/embeddings", input="hello")
    assert status in (400, 404), answer


def test_labels_of_cards_of_other_releases() -> None:
    assert labels_of(ModelCard("m")) == []
    assert labels_of(ModelCard("m", sections={"tags": {"labels": "x", "more": 1}})) == []
    assert labels_of(ModelCard("m", sections={"tags": {"labels": ["x"], "more": 1}})) == ["x"]


def test_the_document_has_no_members_of_features_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def members() -> set[str]:
        return set(document(endpoints(), FrontendSettings())["components"]["schemas"]["NvExt"]["properties"])

    assert "tags" in members()
    monkeypatch.setattr("dynamod.ingress.fields.disabled", lambda: {"tags": "switched off"})
    assert "tags" not in members()
