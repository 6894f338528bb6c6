"""A new endpoint is one class and one line: here one whose engine answers with items, as those of vectors do."""

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api import table
from dynamod.ingress.api.endpoint import EngineEndpoint
from dynamod.ingress.api.openapi import document
from dynamod.ingress.api.response import ResponseWriter
from dynamod.ingress.base import Job
from dynamod.ingress.lowering import Lowered, Served
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import EngineFailed
from dynamod.message.openai import EngineFields


class LengthsRequest(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: str


class LengthsResponse(msgspec.Struct):
    model: str
    data: list[list[float]]
    prompt_tokens: int


class LengthsWriter(ResponseWriter):
    rows: list[list[float]]

    def __init__(self, model: str, meter: ModelMetrics, begun: float) -> None:
        super().__init__(meter, begun)
        self.model, self.rows = model, []

    def chunk(self, index: int, chunk: Any) -> None:
        if self.open:
            self.tick(self.choices[index], 0)
            self.rows.append(chunk)

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.Response:
        while self.open:
            await self.changed.wait()
            self.changed.clear()
        if self.error is not None:
            raise self.error
        return json_response(LengthsResponse(self.model, self.rows, self.prompt_tokens), headers=headers)


class Lengths(EngineEndpoint[LengthsRequest]):
    path = "/v1/lengths"
    summary = "Lengths of a text"
    request = LengthsRequest
    response = LengthsResponse
    label = "lengths"
    model_type = "lengths"

    async def lower(self, job: Job, served: Served) -> Lowered:
        raise AssertionError("the fake backend lowers nothing")

    def writer(
        self,
        request: LengthsRequest,
        job: Job,
        context: RequestContext,
        meter: ModelMetrics,
        settings: FrontendSettings,
    ) -> ResponseWriter:
        return LengthsWriter(request.model, meter, context.begun)


@pytest.fixture
def endpoints(monkeypatch) -> tuple:
    monkeypatch.setattr(table, "ENDPOINTS", (*table.ENDPOINTS, Lengths()))
    return table.ENDPOINTS


@pytest.fixture
async def post(endpoints, backend, serve):
    backend.cards["e"] = ModelCard(name="e", types=("lengths",))
    server = await serve()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

        async def request(path: str, body: Any):
            async with session.post(path, json=body) as answer:
                return answer.status, await answer.json()

        request.server = server
        yield request


async def test_items_become_the_answer(post, backend) -> None:
    async def play(job, sink) -> None:
        assert isinstance(job.endpoint, Lengths)
        assert job.request.input == "hi"
        sink.started(1, 3, {})
        sink.chunk(0, [0.5, 1.0])
        sink.finish(0, "stop", 0, 4)

    backend.play = play
    status, body = await post("/v1/lengths", {"model": "e", "input": "hi", "user": "me"})
    assert (status, body) == (200, {"model": "e", "data": [[0.5, 1.0]], "prompt_tokens": 4})
    meter = post.server.metrics.models["e"]
    assert meter.requests == {("lengths", "unary", "success", ""): 1}
    assert (meter.inflight, meter.queued) == (0, 0)


async def test_its_refusals_and_failures_are_those_of_the_others(post, backend) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 3, {})
        sink.fail(EngineFailed("died"))

    backend.play = play
    assert (await post("/v1/lengths", {"model": "e", "input": "hi"}))[0] == 502
    for body, status, param in [
        ({"model": "e"}, 400, "input"),
        ({"model": "e", "input": 5}, 400, "input"),
        ({"model": "org/model", "input": "x"}, 404, "model"),
        ({"input": "x"}, 400, "model"),
    ]:
        got, answer = await post("/v1/lengths", body)
        assert (got, answer["error"]["param"]) == (status, param)
    assert (await post("/v1/chat/completions", {"model": "e", "messages": [{"role": "user", "content": "x"}]}))[
        0
    ] == 404


def test_it_is_in_the_document(endpoints) -> None:
    made = document(endpoints, FrontendSettings())
    assert made["paths"]["/v1/lengths"]["post"]["operationId"] == "postV1Lengths"
    assert made["components"]["schemas"]["LengthsRequest"]["required"] == ["input"]
    assert made["components"]["schemas"]["LengthsResponse"]["properties"]["data"]["type"] == "array"
