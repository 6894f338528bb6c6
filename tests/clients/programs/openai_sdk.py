"""OpenAI's SDK: forms, tools and their loop, by chat completions and by responses."""

import json
from typing import Any

import openai
from flows import QUESTION, WEATHER, Order, Settings, main
from pydantic import BaseModel


class get_weather(BaseModel):
    """Get the weather"""

    city: str


ASKED: Any = [{"role": "user", "content": QUESTION}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather", "parameters": PARAMETERS},
}


def client(settings: Settings) -> openai.OpenAI:
    return openai.OpenAI(base_url=settings.v1, api_key="unused", timeout=20, max_retries=0)


def parse(settings: Settings) -> Any:
    answer = client(settings).chat.completions.parse(model=settings.model, messages=ASKED, response_format=Order)
    order = answer.choices[0].message.parsed
    return order and order.model_dump()


def parsed_stream(settings: Settings) -> Any:
    asked: Any = {"model": settings.model, "messages": ASKED, "response_format": Order}
    with client(settings).chat.completions.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        message = stream.get_final_completion().choices[0].message
    assert "".join(pieces) == message.content
    return message.parsed and message.parsed.model_dump()


def parsed_tools(settings: Settings) -> Any:
    """Calls whose arguments are objects of the caller's classes."""
    tools = [openai.pydantic_function_tool(get_weather)]
    asked: Any = {"model": settings.model, "messages": ASKED, "tools": tools, "tool_choice": settings.choice}
    answer = client(settings).chat.completions.parse(**asked, parallel_tool_calls=False)
    calls = answer.choices[0].message.tool_calls or []
    assert all(isinstance(call.function.parsed_arguments, get_weather) for call in calls)
    return [call.function.parsed_arguments.model_dump() for call in calls]


def streamed_tools(settings: Settings) -> Any:
    """The same call by the helper's events and by the chunks themselves."""
    asked: Any = {"model": settings.model, "messages": ASKED, "tools": [TOOL], "tool_choice": settings.choice}
    asked |= {"parallel_tool_calls": False, "seed": 1}
    with client(settings).chat.completions.stream(**asked) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        choice = stream.get_final_completion().choices[0]
    names: list[str] = []
    pieces: list[str] = []
    for chunk in client(settings).chat.completions.create(**asked, stream=True):
        for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            names += [call.function.name] if call.function.name else []
            pieces.append(call.function.arguments or "")
    assert [event.name for event in done] == names
    assert "".join(event.arguments for event in done) == "".join(pieces)
    return [choice.finish_reason, *names, json.loads("".join(pieces))]


def tool_loop(settings: Settings) -> Any:
    """Calls until the model answers with text; told to call, it is told so for the first turn only."""
    messages, calls, choice = list(ASKED), [], settings.choice
    for _ in range(4):
        asked: Any = {"model": settings.model, "messages": messages, "tools": [TOOL], "tool_choice": choice}
        message = client(settings).chat.completions.create(**asked, max_tokens=60).choices[0].message
        if not message.tool_calls:
            return {"calls": calls, "text": message.content}
        messages.append(message)
        for call in message.tool_calls:
            calls.append([call.function.name, json.loads(call.function.arguments)])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER})
        choice = "auto"
    raise AssertionError("no end of calls")


def responses_parse(settings: Settings) -> Any:
    response = client(settings).responses.parse(model=settings.model, input=QUESTION, text_format=Order)
    return response.output_parsed and response.output_parsed.model_dump()


def responses_loop(settings: Settings) -> Any:
    """The result goes back with the id of the response that asked for it; the second turn is streamed."""
    tool: Any = {"type": "function", **TOOL["function"], "strict": True}
    api = client(settings).responses
    first = api.create(model=settings.model, input=QUESTION, tools=[tool], tool_choice=settings.choice)
    calls = [item for item in first.output if item.type == "function_call"]
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": WEATHER} for call in calls]
    asked: Any = {"model": settings.model, "input": results, "tools": [tool], "max_output_tokens": 60}
    with api.stream(**asked, previous_response_id=first.id) as stream:
        events = list(stream)
    text = events[-1].response.output_text  # completed, or incomplete
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    return {"calls": [[call.name, json.loads(call.arguments)] for call in calls], "text": text}


main(parse, parsed_stream, parsed_tools, streamed_tools, tool_loop, responses_parse, responses_loop)
