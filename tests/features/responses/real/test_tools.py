"""Namespaces and custom tools through the real stack, by OpenAI's SDK."""

from typing import Any

import aiohttp
import openai
import pytest

from dynamod.message import tokens

RAW = {"nvext": {"use_raw_prompt": True}}
SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object"}, "strict": False}
TOOLS: list[Any] = [
    {"type": "namespace", "name": "agents", "description": "Others", "tools": [SPAWN]},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
    {"type": "web_search"},
]
SPAWNED = '<tool_call>\n{"name": "agents__spawn", "arguments": {"n": 1}}\n</tool_call>'
PATCHED = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n+ü"}}\n</tool_call>'


async def test_calls_have_the_names_and_forms_of_the_client(client: openai.AsyncOpenAI) -> None:
    body: Any = {"model": "sample", "input": SPAWNED + PATCHED, "tools": TOOLS, "extra_body": RAW}
    spawn, patch = (await client.responses.create(**body)).output
    assert (spawn.type, spawn.name, spawn.namespace, spawn.arguments) == (
        "function_call",
        "spawn",
        "agents",
        '{"n": 1}',
    )
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** Begin\n+ü")
    assert "namespace" not in patch.model_dump(exclude_unset=True)
    events = [event async for event in await client.responses.create(**body, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    own = [event for event in events if getattr(event, "output_index", None) == 1]
    assert [event.type.removeprefix("response.") for event in own] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert (own[0].item.input, own[1].delta, own[2].input) == ("", patch.input, patch.input)
    last = events[-1].response
    assert [tool.type for tool in last.tools] == ["namespace", "custom", "web_search"]
    assert last.tools[0].tools[0].name == "spawn"


async def test_the_conversation_goes_on_by_items_and_by_the_id(client: openai.AsyncOpenAI, house: Any) -> None:
    first = await client.responses.create(model="sample", input=SPAWNED + PATCHED, tools=TOOLS, extra_body=RAW)
    spawn, patch = first.output
    results: list[Any] = [
        {"type": "function_call_output", "call_id": spawn.call_id, "output": "agent 7"},
        {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "done"},
    ]
    said = [one.model_dump(exclude_unset=True) for one in first.output]
    by_items = await client.responses.create(model="sample", input=[*said, *results], tools=TOOLS, max_output_tokens=1)
    one = prompt_of(house)
    assert '"name": "agents__spawn"' in one.replace("'", '"')
    assert "*** Begin" in one
    assert by_items.status in ("completed", "incomplete")
    await client.responses.create(
        model="sample", previous_response_id=first.id, input=results, tools=TOOLS, max_output_tokens=1
    )
    said_twice = [text.partition("<|im_start|>assistant")[2] for text in (one, prompt_of(house))]
    assert said_twice[0] == said_twice[1] != "", "the same conversation"
    listed = [item async for item in await client.responses.input_items.list(by_items.id, order="asc")]
    assert [item.type for item in listed][:2] == ["function_call", "custom_tool_call"]
    assert (listed[0].namespace, listed[1].input) == ("agents", patch.input)


async def test_tools_that_are_left_out_are_counted(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "sample", "input": "hi", "tools": TOOLS[2:] * 2, "extra_body": RAW}
    assert (await client.responses.create(**asked)).output_text == "hi"
    with pytest.raises(openai.BadRequestError, match="asks for a tool of type 'web_search'") as raised:
        await client.responses.create(**asked, tool_choice={"type": "web_search"})
    assert raised.value.param == "tool_choice"
    async with aiohttp.ClientSession() as other, other.get(str(client.base_url.join("/metrics"))) as answer:
        assert 'dynamo_frontend_unsupported_fields_total{field="tools.web_search"} 2.0' in await answer.text()


def prompt_of(house: Any) -> str:
    """What the engine has been asked last."""
    found: str = house.processor.model("sample").tokenizer.decode(
        tokens.unpack(house.members[0].engine.requests[-1].token_ids), skip_special=False
    )
    return found


async def test_arguments_come_in_pieces(client: openai.AsyncOpenAI) -> None:
    long = SPAWNED.replace('{"n": 1}', '{"text": "' + "x " * 50 + '"}')
    body: Any = {"model": "sample", "input": long, "tools": TOOLS, "extra_body": RAW}
    events = [event async for event in await client.responses.create(**body, stream=True)]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert len(deltas) > 50
    assert "".join(deltas) == done.arguments == '{"text": "' + "x " * 50 + '"}'
    cut: Any = {**body, "max_output_tokens": 40}
    last = [event async for event in await client.responses.create(**cut, stream=True)][-1].response
    assert (last.status, last.output[0].status) == ("incomplete", "incomplete")
    assert last.output[0].arguments.startswith('{"text": "x x')
    broken: Any = {**body, "input": SPAWNED.replace('"n"', "n")}
    for stream in (False, True):
        answer: Any = await client.responses.create(**broken, stream=stream)
        found = [event async for event in answer][-1].response if stream else answer
        assert [one.arguments for one in found.output] == ["{n: 1}"]
    told = [*found.output, {"type": "function_call_output", "call_id": found.output[0].call_id, "output": "no JSON"}]
    items: Any = [one if isinstance(one, dict) else one.model_dump(exclude_unset=True) for one in told]
    again = await client.responses.create(model="sample", input=items, tools=TOOLS, max_output_tokens=1)
    assert again.output, "a client may send back what it got"
