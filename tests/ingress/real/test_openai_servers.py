"""OpenAI servers behind the frontend, as a client reads them over HTTP: answers, and every fault with its status."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.openai.engine import OpenAI
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.table import make_server
from tests.engine.openai.misbehaving import Misbehaving
from tests.ports import free_port, listener


@pytest.fixture
async def front(house: Any) -> AsyncIterator[SimpleNamespace]:
    """`serve(how)`: a worker whose model is called as the fault of its server; `ask` and `events`: as clients do."""
    misbehaving = Misbehaving()
    await house.start()
    server = make_server(FrontendSettings(host="127.0.0.1", port=0), house.backend)
    await server.start(listener(), spawn=asyncio.create_task)
    async with TestServer(misbehaving.app, port=free_port()) as upstream, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{server.port}"

        async def serve(how: str, name: str = "", **arguments: Any) -> Any:
            given = {"url": f"http://127.0.0.1:{upstream.port}/v1", "model": how, **arguments}

            def make(options: EngineOptions, spawn: Spawn) -> OpenAI:
                return OpenAI(replace(options, path=None, arguments=given), spawn)

            member = await house.worker(make, name or how)
            async with asyncio.timeout(10):
                while (name or how) not in house.processor.cards:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return member

        async def ask(model: str, path: str = "chat/completions", **fields: Any) -> tuple[int, Any]:
            body = {"model": model, **fields}
            if path != "completions":
                body.setdefault("messages", [{"role": "user", "content": "hi"}])
            async with client.post(f"{url}/v1/{path}", json=body) as response:
                text = await response.text()
                return response.status, text if fields.get("stream") else json.loads(text)

        yield SimpleNamespace(serve=serve, ask=ask, server=misbehaving)
    await server.stop(0)


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ("401", 502, "upstream_unauthorized"),
        ("unknown", 404, "model_not_found"),
        ("wrong", 400, "purpose"),
        ("busy", 503, "no_workers"),
        ("broken", 503, "no_workers"),
        ("closes", 503, "no_workers"),
        ("html", 502, "upstream_no_stream"),
        ("nonsense", 502, "upstream_no_stream"),
        ("cut", 502, "upstream_cut"),
        ("error-event", 502, "upstream_failed"),
        ("stalls", 504, "upstream_stalled"),
        ("silent", 504, "upstream_silent"),
    ],
)
async def test_each_fault_has_its_status(front: Any, how: str, status: int, code: str) -> None:
    await front.serve(how, **{"stalls": {"gap_timeout": 0.3}, "silent": {"first_timeout": 0.3}}.get(how, {}))
    found, answer = await front.ask(how)
    assert (found, answer["error"]["code"]) == (status, code), answer


async def test_answers_whole_and_streamed(front: Any) -> None:
    await front.serve("good")
    status, answer = await front.ask("good", n=2)
    assert status == 200
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["0 1 2 ", "0 1 2 "]
    assert answer["usage"] == {"prompt_tokens": 11, "completion_tokens": 10, "total_tokens": 21}
    _, text = await front.ask("good", stream=True, stream_options={"include_usage": True}, max_tokens=5)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in events if one["choices"]) == "0 1 2 "
    assert events[-1]["usage"] == {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
    status, answer = await front.ask("good", "completions", prompt="say", echo=True)
    assert (status, answer["choices"][0]["text"]) == (200, "say0 1 2 ")
    status, answer = await front.ask("good", stop=["1"])
    assert answer["choices"][0]["message"]["content"] == "0 ", "as for every text engine"


async def test_tool_calls_and_logprobs_reach_the_client(front: Any) -> None:
    await front.serve("tools")
    status, answer = await front.ask("tools", tools=[{"type": "function", "function": {"name": "f"}}])
    [choice] = answer["choices"]
    assert (status, choice["finish_reason"], choice["message"]["reasoning_content"]) == (200, "tool_calls", "so so")
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert choice["message"]["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert answer["usage"]["completion_tokens"] == 9
    _, text = await front.ask("tools", stream=True)
    assert text.count('"reasoning_content"') == 2
    assert text.count('"tool_calls":[') == 2
    assert '"finish_reason":"tool_calls"' in text
    await front.serve("logprobs")
    status, answer = await front.ask("logprobs", logprobs=True)
    assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
    assert answer["choices"][0]["message"]["content"] == "hi"


async def test_what_one_server_refuses_another_takes(front: Any) -> None:
    await front.serve("broken", "both")
    await front.serve("good", "both")
    for _ in range(6):
        status, answer = await front.ask("both")
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "0 1 2 ")
    assert {body["model"] for body in front.server.seen} == {"broken", "good"}
