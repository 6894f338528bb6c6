"""Anthropic's SDK: messages, streams, tools and their loops, counted tokens, forms."""

from typing import Any

import anthropic
from flows import QUESTION, WEATHER, Order, Settings, main

ASKED: Any = [{"role": "user", "content": QUESTION}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@anthropic.beta_tool(description=TOOL["description"], input_schema=TOOL["input_schema"])
def get_weather(city: str) -> str:
    return WEATHER if city else ""


def client(settings: Settings) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=settings.url, api_key="unused", timeout=20, max_retries=0)


def chosen(settings: Settings) -> Any:
    return {"type": "any" if settings.choice == "required" else "auto", "disable_parallel_tool_use": True}


def message(settings: Settings) -> Any:
    answer = client(settings).messages.create(model=settings.model, max_tokens=20, messages=ASKED)
    return ["".join(block.text for block in answer.content if block.type == "text"), answer.stop_reason]


def streamed(settings: Settings) -> Any:
    with client(settings).messages.stream(model=settings.model, max_tokens=20, messages=ASKED) as stream:
        text = "".join(stream.text_stream)
        answer = stream.get_final_message()
    assert text == "".join(block.text for block in answer.content if block.type == "text")
    return [text, answer.stop_reason]


def counted(settings: Settings) -> Any:
    """What is counted is what a message takes."""
    asked: Any = {"model": settings.model, "messages": ASKED, "tools": [TOOL], "system": "Be short."}
    answer = client(settings).messages.create(**asked, max_tokens=1)
    taken = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    return [client(settings).messages.count_tokens(**asked).input_tokens, taken]


def tool_loop(settings: Settings) -> Any:
    """The first turn as a stream, the second in one piece."""
    asked: Any = {"model": settings.model, "max_tokens": 200, "tools": [TOOL]}
    with client(settings).messages.stream(**asked, messages=ASKED, tool_choice=chosen(settings)) as stream:
        first = stream.get_final_message()
    calls = [block for block in first.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": WEATHER} for call in calls]
    turns = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = client(settings).messages.create(**asked | {"max_tokens": 60}, messages=turns)
    text = "".join(block.text for block in second.content if block.type == "text")
    return {"stop": first.stop_reason, "calls": [[call.name, call.input] for call in calls], "text": text}


def tool_runner(settings: Settings) -> Any:
    """The SDK's own loop; it cannot be told to call on one turn only, so it has one turn then."""
    asked: Any = {"model": settings.model, "max_tokens": 200, "messages": ASKED, "tools": [get_weather]}
    limit: Any = {"max_iterations": 1} if settings.choice == "required" else {}
    runner = client(settings).beta.messages.tool_runner(**asked, tool_choice=chosen(settings), **limit)
    turns = list(runner)
    calls = [[block.name, block.input] for turn in turns for block in turn.content if block.type == "tool_use"]
    return {"calls": calls, "text": "".join(block.text for block in turns[-1].content if block.type == "text")}


def parse(settings: Settings) -> Any:
    asked: Any = {"model": settings.model, "max_tokens": 1000, "messages": ASKED}
    order = client(settings).messages.parse(**asked, output_format=Order).parsed_output
    return order and order.model_dump()


main(message, streamed, counted, tool_loop, tool_runner, parse)
