"""What requests of the Responses API mean as chat requests, which responses are kept, and how streams fail."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamod.features.responses.items import sealed
from dynamod.features.responses.messages import InputItem, InputPart, ResponsesRequest
from dynamod.features.responses.store import ResponseStore, StoredResponse
from dynamod.features.responses.translate import check, to_chat
from dynamod.ingress.api.translated import as_body
from dynamod.message.errors import EngineFailed
from dynamod.message.openai import ChatRequest, Message
from dynamod.preprocess.conversation import check_messages
from dynamod.preprocess.parse import Parser


def chat_of(history: list[Message] | None = None, **fields: Any) -> ChatRequest:
    found = msgspec.convert({"input": "Hi", **fields}, ResponsesRequest)
    check(found)
    return to_chat(found, history or [])


def part(kind: str, words: str) -> dict[str, Any]:
    return {"type": kind, "refusal" if kind == "refusal" else "text": words}


def test_items_of_an_assistant_become_one_message() -> None:
    items = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [part("input_text", "1")]},
        {"type": "reasoning", "summary": [part("summary_text", "s")], "content": [part("reasoning_text", "t")]},
        {"type": "message", "role": "assistant", "content": [part("output_text", "2"), part("refusal", "3")]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "4"},
        {"type": "function_call_output", "call_id": "a", "output": [part("input_text", "5")]},
        {"type": "reasoning", "summary": [part("summary_text", "s")]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "content": [part("reasoning_text", "u")]},
        {"role": "assistant", "content": "6"},
        {"role": "user", "content": "7"},
    ]
    chat = chat_of([Message("user", "0")], input=items, instructions="i")
    assert [(one.role, msgspec.to_builtins(one.content)) for one in chat.messages[:3]] == [
        ("system", "i"),
        ("user", "0"),
        ("developer", "d"),
    ]
    assert [one.role for one in chat.messages[3:]] == [
        *("user", "assistant", "tool", "tool", "assistant", "assistant", "user"),
    ]
    answer, first, second, thought, last = chat.messages[4:9]
    assert answer.reasoning_content == "t"
    assert [one.text for one in answer.content or () if not isinstance(one, str)] == ["2", "3"]
    assert [(one.id, one.function.name, one.function.arguments) for one in answer.tool_calls or ()] == [
        ("a", "f", '{"x": 1}'),
        ("b", "g", "{}"),
    ]
    assert [(one.tool_call_id, one.name, one.content) for one in (first, second)] == [("b", "g", "4"), ("a", "f", "5")]
    assert (thought.reasoning_content, thought.content) == ("s", None)
    assert (last.reasoning_content, last.content, last.tool_calls) == ("u", "6", None)


def test_reasoning_as_clients_carry_it() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    for item, found in [
        ({"encrypted_content": sealed("H\u00f6m x."), "summary": []}, "H\u00f6m x."),
        ({"encrypted_content": sealed("a"), "content": [part("reasoning_text", "b")]}, "b"),
        ({"encrypted_content": sealed("a"), "content": [part("reasoning_text", "")], "summary": []}, "a"),
        ({"encrypted_content": "gAAAA", "summary": [part("summary_text", "s")]}, "s"),
        ({"encrypted_content": "dynamod:!", "summary": []}, None),
    ]:
        assert chat_of(input=[{"type": "reasoning", **item}, call]).messages[0].reasoning_content == found


def test_fields() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    chat = chat_of(
        model="m",
        max_output_tokens=5,
        reasoning={"effort": "high"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        stream=True,
    )
    assert (chat.model, chat.token_limit[0], chat.reasoning_effort, chat.stream) == ("m", 5, "high", True)
    assert chat.tools == [
        {"type": "function", "function": {key: tool[key] for key in ("name", "parameters", "strict")}}
    ]
    assert chat.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert chat.parallel_tool_calls is False
    assert chat.response_format is not None
    assert chat.response_format.json_schema == {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert chat_of(text={"format": {"type": "text"}}).response_format is None
    assert chat_of(text={"format": {"type": "json_object"}}).constraint == "response_format"


WORDS = st.text(st.characters(codec="utf-8"), max_size=6)
ITEM = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "system", "developer", "assistant"]),
        WORDS | st.lists(WORDS.map(lambda words: part("input_text", words)), max_size=3),
    ),
    WORDS.map(lambda words: {"type": "reasoning", "content": [part("reasoning_text", words)]}),
    st.sampled_from("ab").map(lambda i: {"type": "function_call", "call_id": i, "name": f"f{i}", "arguments": "{}"}),
    st.builds(
        lambda i, output: {"type": "function_call_output", "call_id": i, "output": output}, st.sampled_from("ab"), WORDS
    ),
)


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(ITEM, min_size=1, max_size=8))
def test_nothing_of_any_input_is_lost(items: list[dict[str, Any]]) -> None:
    chat = chat_of(input=items, instructions="i")
    check_messages(chat.messages)
    calls = [call.id for message in chat.messages for call in message.tool_calls or ()]
    assert calls == [item["call_id"] for item in items if item.get("type") == "function_call"]
    results = [message.tool_call_id for message in chat.messages if message.role == "tool"]
    assert results == [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    for role in ("user", "assistant"):
        said = [message.content for message in chat.messages if message.role == role]
        found = "".join(
            one if isinstance(one, str) else "".join(piece.text or "" for piece in one)
            for one in said
            if one is not None
        )
        contents = [item["content"] for item in items if item.get("role") == role]
        wanted = "".join(one if isinstance(one, str) else "".join(piece["text"] for piece in one) for one in contents)
        assert found == wanted
    assert Parser(ChatRequest).parse(as_body(chat)) == (chat, 0)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "get", "remove"]), st.sampled_from("abcde"), st.integers(0, 900))))
def test_the_store_has_the_newest_and_no_more_than_it_may(steps: list[tuple[str, str, int]]) -> None:
    async def take() -> None:
        store, order = ResponseStore("", 2000), dict[str, int]()
        for what, name, size in steps:
            if what == "put":
                stored = StoredResponse(b"x" * size, (Message("user", "y"),))
                store.put(name, stored)
                order.pop(name, None)
                order[name] = len(msgspec.msgpack.encode(stored))
                while sum(order.values()) > 2000:
                    order.pop(next(iter(order)))
            elif what == "get":
                assert (await store.get(name) is not None) == (name in order)
                if name in order:
                    order[name] = order.pop(name)
            else:
                assert await store.remove(name) == (order.pop(name, None) is not None)
            found = [name for name in (*order, *(set("abcde") - {*order})) if await store.get(name) is not None]
            assert found == list(order), "and they are used in this order"
        store.put("large", StoredResponse(b"x" * 3000, ()))
        assert await store.get("large") is None

    asyncio.run(take())


@pytest.mark.parametrize(
    "item",
    [
        InputItem("reasoning", summary=[], encrypted_content="x" * 9000),
        InputItem("reasoning", summary=[InputPart("summary_text", "x" * 9000)]),
        InputItem(role="user", content="y", id="x" * 9000),
        InputItem("function_call_output", call_id="x" * 9000, output="y"),
    ],
)
async def test_what_items_alone_have_counts_in_the_store(item: InputItem) -> None:
    store = ResponseStore("", 5000)
    store.put("large", StoredResponse(b"", (Message("user", "y"),), (item,)))
    assert await store.get("large") is None


async def test_a_store_that_may_keep_nothing(serve: Any, connect: Any) -> None:
    client = await connect(await serve(responses_store_mb=0))
    client.post("/v1/responses", b'{"input": "x"}')
    status, headers = await client.head()
    answer = json.loads(await client.body(headers))
    assert (status, answer["status"]) == (200, "completed")
    client.writer.write(f"GET /v1/responses/{answer['id']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status, headers = await client.head()
    assert (status, json.loads(await client.body(headers))["error"]["code"]) == (404, "response_not_found")


async def test_a_stream_that_fails(server: Any, backend: Any, connect: Any, until: Any) -> None:
    async def play(_job: Any, sink: Any) -> None:
        sink.started(1, 5, {})
        sink.text(0, "some", 1)
        await until(lambda: sink.events.committed)
        sink.fail(EngineFailed("broken"))

    backend.play = play
    client = await connect(server)
    client.post("/v1/responses", b'{"input": "x", "stream": true}')
    assert (await client.head())[0] == 200
    *_, last = b"".join(await client.chunks()).decode().strip().split("\n\n")
    name, data = last.split("\n")
    value = json.loads(data.removeprefix("data: "))
    assert name == "event: response.failed"
    assert value["response"]["error"] == {"code": "engine_failed", "message": "broken"}
    assert value["response"]["status"] == "failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_text_engine_says(server: Any, backend: Any, connect: Any, stream: bool) -> None:
    async def play(_job: Any, sink: Any) -> None:
        sink.started(1, 0, {})
        call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}}
        for delta in (
            {"reasoning": "a"},
            {"content": "b"},
            {"tool_calls": [call]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":1}'}}]},
        ):
            sink.chunk(0, {"choices": [{"delta": delta}]})
        sink.finish(0, "tool_calls", 7, 5)

    backend.play = play
    client = await connect(server)
    client.post("/v1/responses", json.dumps({"input": "x", "stream": stream}).encode())
    _, headers = await client.head()
    if stream:
        *_, last = b"".join(await client.chunks()).decode().strip().split("\n\n")
        response = json.loads(last.split("\n")[1].removeprefix("data: "))["response"]
    else:
        response = json.loads(await client.body(headers))
    thought, message, call = response["output"]
    assert (thought["content"][0]["text"], message["content"][0]["text"]) == ("a", "b")
    assert (call["call_id"], call["name"], call["arguments"]) == ("1", "f", '{"x":1}')
    assert response["usage"]["input_tokens"] == 5
