"""OpenAI's SDK asks for responses of the real stack: the echo engine says what the test wants it to."""

from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from dynamod.message import tokens

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "weather",
        "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = CALL.replace("Paris", "Rome")
RAW = {"nvext": {"use_raw_prompt": True}}

Ask = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def ask(client: openai.AsyncOpenAI) -> Ask:
    """`ask(text)`: the response of a model that says this text, streamed and in one piece."""

    async def ask(text: str, **fields: Any) -> dict[str, Any]:
        body = {"model": "sample", "input": text} | fields
        whole = plain(await client.responses.create(**body, extra_body=RAW))
        events = [event async for event in await client.responses.create(**body, extra_body=RAW, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        assert plain(events[-1].response) == whole, "streamed and in one piece it is the same"
        assert events[-1].type == f"response.{events[-1].response.status}"
        assembled(events, events[-1].response)
        return whole

    return ask


def plain(response: Any) -> dict[str, Any]:
    """A response without ids and times."""
    assert response.id.startswith("resp_")
    found = response.model_dump()
    for item in found["output"]:
        assert item.pop("id")
        if item["type"] == "function_call":
            assert item.pop("call_id")
    assert found["usage"]["total_tokens"] == found["usage"]["input_tokens"] + found["usage"]["output_tokens"]
    assert (found["completed_at"] is None) == (found["status"] != "completed")
    return {name: value for name, value in found.items() if name not in ("id", "created_at", "completed_at")}


def assembled(events: list[Any], response: Any) -> None:
    """Each item comes as added, its deltas, and done; together they are what the response has."""
    for place, item in enumerate(response.output):
        own = [event for event in events if getattr(event, "output_index", None) == place]
        assert own[0].type == "response.output_item.added"
        assert own[0].item.status == "in_progress"
        assert own[-1].type == "response.output_item.done"
        assert own[-1].item == item
        text = "".join(event.delta for event in own if event.type.endswith(".delta"))
        kinds = [event.type.removeprefix("response.") for event in own if not event.type.endswith(".delta")]
        if item.type == "function_call":
            assert text == item.arguments
            assert kinds[1:-1] == ["function_call_arguments.done"]
        else:
            assert text == item.content[0].text
            name = "output_text" if item.type == "message" else "reasoning_text"
            assert kinds[1:-1] == ["content_part.added", f"{name}.done", "content_part.done"]


def prompt_of(house: Any) -> str:
    """What the engine has been asked last."""
    found: str = house.processor.model("sample").tokenizer.decode(
        tokens.unpack(house.members[0].engine.requests[-1].token_ids), skip_special=False
    )
    return found


async def test_text(ask: Ask, client: openai.AsyncOpenAI) -> None:
    found = await ask("Hello there", temperature=0.5, metadata={"a": "b"})
    (item,) = found["output"]
    assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", "Hello there")
    assert (found["status"], found["temperature"], found["metadata"]) == ("completed", 0.5, {"a": "b"})
    response = await client.responses.create(model="sample", input="Hello there", extra_body=RAW)
    assert response.output_text == "Hello there"
    async with client.responses.stream(model="sample", input="Hello there", extra_body=RAW) as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_text == "Hello there"


async def test_reasoning_text_and_calls_in_order(ask: Ask) -> None:
    found = await ask(f"<think>Which city?</think>I look.{CALL}{OTHER}", tools=TOOLS)
    thought, text, *calls = found["output"]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "Which city?")
    assert text["content"][0]["text"] == "I look."
    assert [(one["name"], one["arguments"]) for one in calls] == [
        ("weather", '{"city": "Paris"}'),
        ("weather", '{"city": "Rome"}'),
    ]
    assert 0 < found["usage"]["output_tokens_details"]["reasoning_tokens"] < found["usage"]["output_tokens"]
    assert {item["status"] for item in found["output"]} == {"completed"}
    one = await ask(CALL + OTHER, tools=TOOLS, parallel_tool_calls=False)
    assert len(one["output"]) == 1


async def test_reasoning_in_summaries(client: openai.AsyncOpenAI, house: Any) -> None:
    """As AI SDK and Codex read reasoning; the summary comes back to the model with the next turn."""
    asked: Any = [{"role": "user", "content": f"<think>Which city?</think>{CALL}"}]
    common: Any = {"model": "sample", "tools": TOOLS, "reasoning": {"summary": "auto"}, "extra_body": RAW}
    async with client.responses.stream(input=asked, **common) as stream:
        parts = [event.delta async for event in stream if event.type == "response.reasoning_summary_text.delta"]
        response = await stream.get_final_response()
    thought = response.output[0]
    assert thought.type == "reasoning"
    assert [one.text for one in thought.summary] == ["Which city?"] == ["".join(parts)]
    result: Any = {"type": "function_call_output", "call_id": response.output[1].call_id, "output": "Rain"}
    again = await client.responses.create(input=[result], previous_response_id=response.id, **common)
    by_id = prompt_of(house)
    items = [*asked, *[item.to_dict() for item in response.output], result]
    await client.responses.create(input=items, **common)
    assert prompt_of(house) == by_id
    assert again.status == "completed"
    with pytest.raises(openai.BadRequestError, match=r"`reasoning\.summary`"):
        await client.responses.create(input=asked, **common | {"reasoning": {"summary": "none"}})


async def test_an_answer_that_is_cut_off(ask: Ask) -> None:
    found = await ask("one two three four", max_output_tokens=2)
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["output"][0]["status"] == "incomplete"


async def test_the_tool_round_trip_by_items_and_by_the_id(client: openai.AsyncOpenAI, house: Any) -> None:
    asked: Any = [{"role": "user", "content": f"<think>Hm.</think>{CALL}"}]
    first = await client.responses.create(model="sample", input=asked, tools=TOOLS, extra_body=RAW)
    thought, call = first.output
    assert (thought.type, call.type) == ("reasoning", "function_call")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    more: Any = [result, {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]
    items = [*asked, *[item.to_dict() for item in first.output], *more]
    second = await client.responses.create(model="sample", input=items, tools=TOOLS, instructions="Help.")
    by_items = prompt_of(house)
    assert by_items.endswith(
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nRain\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "Help." in by_items
    third = await client.responses.create(
        model="sample", input=more, tools=TOOLS, previous_response_id=first.id, instructions="Help."
    )
    assert prompt_of(house) == by_items
    assert third.previous_response_id == first.id
    assert third.usage
    assert second.usage
    assert third.usage.input_tokens == second.usage.input_tokens
    counted = await client.responses.input_tokens.count(
        model="sample", input=more, tools=TOOLS, previous_response_id=first.id, instructions="Help."
    )
    assert counted.input_tokens == third.usage.input_tokens


async def test_responses_are_kept(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="sample", input="Hi")
    assert await client.responses.retrieve(response.id) == response
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        await client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        await client.responses.create(model="sample", input="Hi", previous_response_id=response.id)
    not_kept = await client.responses.create(model="sample", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(not_kept.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"tools": [{"type": "telepathy"}]}, "tools[0].type"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)  # fmt: skip
async def test_what_is_refused(client: openai.AsyncOpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.responses.create(**({"model": "sample", "input": "x"} | fields))
    assert raised.value.param == param
