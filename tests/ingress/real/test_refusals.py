"""What would change the answer and is not served: refused by name on engines of every kind, or left out and counted."""

import asyncio
import json
from typing import Any

import pytest

from .asking import post

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
UNSUPPORTED = "unsupported_parameter"
USER = {"role": "user", "content": "hi"}
OBJECT = {"type": "json_object"}


def said(**message: Any) -> dict[str, Any]:
    return {"messages": [USER, message]}


def calling(**function: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", **function}}
    return said(role="assistant", tool_calls=[call])


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("response_format", {"response_format": OBJECT}),
    ("structured_outputs", {"structured_outputs": {"regex": "a"}}),
    ("guided_regex", {"guided_regex": "a"}),
    ("nvext.guided_json", {"nvext": {"guided_json": {}}}),
    ("grammar", {"grammar": "root ::= 'a'"}),
    ("regex", {"regex": "a"}),
    ("ebnf", {"ebnf": "root ::= 'a'"}),
    ("use_beam_search", {"use_beam_search": True}),
    ("length_penalty", {"length_penalty": 0.5}),
    ("best_of", {"best_of": 3}),
    ("allowed_token_ids", {"allowed_token_ids": [5]}),
    ("bad_words", {"bad_words": ["x"]}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 5}),
    ("thinking_token_budget", {"thinking_token_budget": 5}),
    ("prompt_logprobs", {"prompt_logprobs": 0}),
    ("nvext.max_thinking_tokens", {"nvext": {"max_thinking_tokens": 5}}),
]
OF_CHATS: list[tuple[str, dict[str, Any]]] = [
    ("logprobs", {"logprobs": True}),
    ("prediction", {"prediction": {"type": "content", "content": "x"}}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("audio", {"audio": {"voice": "x"}}),
    ("web_search_options", {"web_search_options": {}}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("function_call", {"function_call": {"name": "f"}}),
    ("verbosity", {"verbosity": "low"}),
]
OF_COMPLETIONS: list[tuple[str, dict[str, Any]]] = [
    ("logprobs", {"logprobs": 0}),
    ("logprobs", {"echo": True, "logprobs": 1}),
    ("max_tokens", {"echo": True, "max_tokens": 0}),
    ("suffix", {"suffix": "x"}),
]
UNSERVED = [
    *[(path, name, fields) for path in (CHAT, COMPLETION) for name, fields in FIELDS],
    *[(CHAT, name, fields) for name, fields in OF_CHATS],
    *[(COMPLETION, name, fields) for name, fields in OF_COMPLETIONS],
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("messages[1].role", said(role="<|im_start|>", content="x")),
    ("messages[1].role", said(role="USER", content="x")),
    ("messages[1].content", said(role="system")),
    ("messages[1].tool_call_id", said(role="tool", content="x")),
    ("messages[1].tool_call_id", said(role="tool", content="x", tool_call_id="")),
    ("messages[1].content", said(role="assistant")),
    ("messages[1].content", said(role="assistant", content=None, tool_calls=[])),
    ("messages[1].tool_calls[0].function.arguments", calling(arguments=5)),
    ("messages[1].tool_calls[0].function.name", calling(name="")),
    ("reasoning_effort", {"reasoning_effort": "zillion"}),
    ("tools[0]", tool(name="")),
    ("tools[0]", {"tools": [{"type": "web_search"}]}),
    ("tools[0].function.name", tool(name="a b/ü")),
    ("tools[0].function.name", tool(name="a" * 129)),
    ("tools[0].function.parameters", tool(parameters="x")),
    ("tools[0].function.parameters", tool(parameters=["x"])),
    ("tool_choice", {"tool_choice": "bogus", **tool()}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "g"}}, **tool()}),
]
RIGHT: list[dict[str, Any]] = [
    said(role="tool", content=None, tool_call_id="1"),
    said(role="assistant", content=""),
    said(role="assistant", refusal="No."),
    said(role="assistant", reasoning_content="Well."),
    calling(arguments=""),
    calling(arguments=None),
    calling(arguments={"a": 1}),
    calling(arguments='{"a": 1e400}'),
    {"reasoning_effort": "none"},
    tool(name="mcp__server-1.tool", parameters=None),
    tool(parameters={"type": "object"}),
]


def body_of(path: str, model: str, fields: dict[str, Any]) -> dict[str, Any]:
    asked = {"messages": [USER]} if path == CHAT else {"prompt": "hi"}
    return {"model": model, "max_tokens": 2, **asked, **fields}


@pytest.mark.parametrize("model", ["sample", "text"])
@pytest.mark.parametrize(("path", "name", "fields"), UNSERVED)
def test_what_is_not_served_is_refused_by_name(
    real: Any, model: str, path: str, name: str, fields: dict[str, Any]
) -> None:
    status, answer = post(real.port, path, **body_of(path, model, fields))
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, name, UNSUPPORTED), answer
    assert name in answer["error"]["message"]
    streamed, other = post(real.port, path, **body_of(path, model, fields | {"stream": True}))
    assert (streamed, other["error"]["param"], other["error"]["code"]) == (400, name, UNSUPPORTED), other


@pytest.mark.parametrize("model", ["sample", "text"])
@pytest.mark.parametrize(("name", "fields"), WRONG)
def test_what_is_wrong_is_refused_by_name(real: Any, model: str, name: str, fields: dict[str, Any]) -> None:
    status, answer = post(real.port, CHAT, **body_of(CHAT, model, fields))
    assert (status, answer["error"]["param"]) == (400, name), answer
    assert name.split("[")[0] in answer["error"]["message"]


@pytest.mark.parametrize("model", ["sample", "text"])
@pytest.mark.parametrize("fields", RIGHT)
def test_what_looks_like_it_is_answered(real: Any, model: str, fields: dict[str, Any]) -> None:
    status, answer = post(real.port, CHAT, **body_of(CHAT, model, fields))
    assert status == 200, answer


def test_a_refusal_names_the_allowed_words(real: Any) -> None:
    _, answer = post(real.port, CHAT, **body_of(CHAT, "sample", {"reasoning_effort": "zillion"}))
    known = "high, low, max, medium, minimal, none, xhigh"
    assert answer["error"]["message"] == f"`reasoning_effort` is 'zillion'; it must be one of {known}"


@pytest.mark.parametrize("arguments", ["{oops", "[1]", '{"a":' * 300])
async def test_a_client_may_send_a_broken_call_back(
    house: Any, serve: Any, until: Any, words: Any, arguments: str
) -> None:
    import aiohttp

    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    url = await serve()
    async with aiohttp.ClientSession() as session:
        body = body_of(CHAT, "sample", calling(arguments=arguments) | {"max_tokens": 1})
        async with session.post(url + CHAT, json=body) as answer:
            assert answer.status == 200, await answer.text()


async def test_an_operator_may_have_them_left_out(house: Any, serve: Any, until: Any, words: Any) -> None:
    import aiohttp

    await house.start()
    await house.worker(words.Seen)
    text = await house.worker(words.Manual, "text")
    await until(lambda: len(house.processor.cards) == 2)
    url = await serve(ignore_unsupported_fields=True)
    async with aiohttp.ClientSession() as session:

        async def ask(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            async with session.post(url + path, json=body) as answer:
                return answer.status, await answer.json()

        for path, name, fields in UNSERVED:
            status, answer = await ask(path, body_of(path, "sample", fields | {"seed": 7}))
            assert status == 200, (name, answer)
            assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        for name, fields in WRONG:
            status, answer = await ask(CHAT, body_of(CHAT, "sample", fields))
            assert (status, answer["error"]["param"]) == (400, name), "these would break the answer"
        async with session.get(f"{url}/metrics") as answer:
            counted = [line for line in (await answer.text()).splitlines() if "unsupported_fields_total{" in line]
        assert 'dynamo_frontend_unsupported_fields_total{field="nvext.guided_json"} 2.0' in counted
        assert len(counted) == len({name for _, name, _ in UNSERVED})

        both = {"response_format": OBJECT, "nvext": {"guided_json": {}, "top_k": 3}, "prediction": {}, "user": "me"}
        status, answer = await ask(CHAT, {**body_of(CHAT, "text", both), "stream_options": {}})
        assert (status, answer["error"]["param"]) == (400, "stream_options")
        waiting = asyncio.ensure_future(ask(CHAT, body_of(CHAT, "text", both)))
        await until(lambda: text.engine.requests)
        text.engine.replies[0].text("ok", 1, "stop", 1)
        assert (await waiting)[0] == 200
    sent = json.loads(text.engine.requests[0].body)
    assert sent == {**body_of(CHAT, "text", {"nvext": {"top_k": 3}, "user": "me"})}, "the engine reads the rest alone"
