"""What OpenAI's SDK asks about responses that were made: their input items, references to them, cancelling."""

from typing import Any

import openai
import pytest

from dynamod.message import tokens

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOLS: list[Any] = [{"type": "function", "name": "weather", "strict": False, "parameters": {"type": "object"}}]
RAW = {"nvext": {"use_raw_prompt": True}}


def prompt_of(house: Any) -> str:
    """What the engine has been asked last."""
    found: str = house.processor.model("sample").tokenizer.decode(
        tokens.unpack(house.members[0].engine.requests[-1].token_ids), skip_special=False
    )
    return found


async def made(client: openai.AsyncOpenAI, asked: Any, **fields: Any) -> Any:
    return await client.responses.create(model="sample", input=asked, tools=TOOLS, extra_body=RAW, **fields)


async def test_input_items_of_a_conversation(client: openai.AsyncOpenAI) -> None:
    first = await made(client, f"<think>Hm.</think>I look.{CALL}")
    thought, text, call = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain", "id": "fco_mine"}
    more = [result, {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]
    second = await made(client, more, previous_response_id=first.id)
    [only] = (await client.responses.input_items.list(first.id)).data
    assert (only.type, only.role, only.content[0].text) == ("message", "user", f"<think>Hm.</think>I look.{CALL}")
    pages = client.responses.input_items.list(second.id, order="asc", limit=2)
    items = [item async for item in pages]
    assert [item.type for item in items] == [
        *("message", "reasoning", "message", "function_call", "function_call_output", "message"),
    ]
    assert [item.id for item in items[1:5]] == [thought.id, text.id, call.id, "fco_mine"]
    assert len({item.id for item in items}) == 6
    assert (items[2].content[0].text, items[2].role) == ("I look.", "assistant")
    assert items[3].arguments == '{"city": "Paris"}'
    assert items[4].output == "Rain"
    assert items[5].content[0].text == "And now?"
    newest = await client.responses.input_items.list(second.id, limit=4)
    assert [item.id for item in newest.data] == [item.id for item in items[:1:-1]]
    assert newest.has_more
    rest = await client.responses.input_items.list(second.id, after=newest.data[-1].id)
    assert [item.id for item in rest.data] == [items[1].id, items[0].id]
    assert not rest.has_more
    assert not (await client.responses.input_items.list(second.id, after=items[0].id)).data


async def test_an_item_that_is_referred_to_is_the_item(client: openai.AsyncOpenAI, house: Any) -> None:
    """As the AI SDK sends back what a response had in it."""
    question: Any = {"role": "user", "content": f"<think>Hm.</think>I look.{CALL}"}
    first = await made(client, [question])
    result = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "Rain"}
    body: Any = {"model": "sample", "tools": TOOLS}
    by_items = [question, *[item.to_dict() for item in first.output], result]
    by_ids = [question, *[{"type": "item_reference", "id": item.id} for item in first.output], result]
    await client.responses.create(**body, input=by_items)
    whole = prompt_of(house)
    second = await client.responses.create(**body, input=by_ids)
    assert prompt_of(house) == whole
    assert "I look." in whole
    counts = [await client.responses.input_tokens.count(**body, input=given) for given in (by_items, by_ids)]
    assert counts[0].input_tokens == counts[1].input_tokens
    listed = (await client.responses.input_items.list(second.id, order="asc")).data
    assert [item.id for item in listed[1:4]] == [item.id for item in first.output]
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="there is no item") as raised:
        await client.responses.create(**body, input=by_ids)
    assert raised.value.param == "input[1].id"


async def test_nothing_can_be_cancelled(client: openai.AsyncOpenAI) -> None:
    response = await made(client, "Hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(response.id)
    assert (await client.responses.retrieve(response.id)).status == "completed"
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        await client.responses.cancel(response.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        await client.responses.input_items.list(response.id)


async def test_pages_that_cannot_be_had(client: openai.AsyncOpenAI) -> None:
    response = await made(client, "Hi")
    for query, param in (
        ("limit=0", "limit"),
        ("limit=0000000500", "limit"),
        ("limit=000000001" + "9" * 4500, "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.get(f"/responses/{response.id}/input_items?{query}", cast_to=object)
        assert raised.value.param == param, query[:40]


async def test_events_of_a_kept_response_are_refused(client: openai.AsyncOpenAI) -> None:
    response = await made(client, "Hi")
    with pytest.raises(openai.BadRequestError) as raised:
        await client.responses.retrieve(response.id, stream=True)
    assert raised.value.param == "stream"


async def test_reasoning_that_the_client_carries(client: openai.AsyncOpenAI, house: Any) -> None:
    """As agents do that keep nothing on the server: reasoning comes back without its text."""
    question: Any = {"role": "user", "content": f"<think>H\u00f6m.</think>{CALL}"}
    include: Any = ["reasoning.encrypted_content"]
    body: Any = {"model": "sample", "tools": TOOLS, "store": False, "include": include}
    first = await client.responses.create(**body, input=[question], extra_body=RAW)
    thought, call = [item.to_dict() for item in first.output]
    stream = await client.responses.create(**body, input=[question], stream=True, extra_body=RAW)
    events = [event async for event in stream]
    [done] = [event.item for event in events if event.type == "response.output_item.done"][:1]
    assert done.encrypted_content == thought["encrypted_content"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain"}
    await client.responses.create(**body, input=[question, thought, call, result])
    whole = prompt_of(house)
    carried = {name: value for name, value in thought.items() if name != "content"} | {"summary": []}
    await client.responses.create(**body, input=[question, carried, call, result])
    assert prompt_of(house) == whole
    other = carried | {"encrypted_content": "gAAAA"}
    await client.responses.create(**body, input=[question, other, call, result])
    plain = await client.responses.create(model="sample", input=[question], extra_body=RAW)
    assert plain.output[0].encrypted_content is None


async def test_tokens_are_counted_without_an_input_and_nothing_is_compacted(client: openai.AsyncOpenAI) -> None:
    short = await client.responses.input_tokens.count(model="sample")
    long = await client.responses.input_tokens.count(model="sample", instructions="Be very short, please.")
    assert 0 < short.input_tokens < long.input_tokens
    with pytest.raises(openai.BadRequestError, match="summary"):
        await client.post("/responses/compact", body={"model": "sample"}, cast_to=object)
