"""A client that gives a model tools: OpenAI's own, streaming and not."""

import json
from typing import Any

import openai

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
ASKED: dict[str, Any] = {"role": "user", "content": "What is the weather in Paris?"}


def message(client: openai.OpenAI, messages: list[Any], **fields: Any) -> tuple[dict[str, Any], str]:
    """The assembled message and the finish reason, the same streamed and in one piece."""
    body: dict[str, Any] = {"model": "sample", "messages": messages, "max_tokens": 60, "temperature": 0, **fields}
    choice = client.chat.completions.create(**body).choices[0]
    whole = plain(choice.message.model_dump(exclude_none=True))
    streamed: dict[str, Any] = {}
    finish = ""
    for chunk in client.chat.completions.create(**body, stream=True):
        for part in chunk.choices:
            finish = part.finish_reason or finish
            for name, value in plain(part.delta.model_dump(exclude_none=True)).items():
                streamed[name] = streamed[name] + value if name in streamed else value
    assert (streamed, finish) == (whole, choice.finish_reason)
    return whole, choice.finish_reason


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """Without the role, and without ids of calls, of which each is another."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in found.pop("tool_calls", ())]
    kept = {name: value for name, value in found.items() if value and name != "role"}
    return kept | ({"calls": calls} if calls else {})


def use_a_tool(url: str) -> None:
    """A question, the model's call, the tool's answer, and what the model makes of it; then a thought."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=30) as client:
        call, finish = message(client, [ASKED], tools=TOOLS)
        [(name, arguments)] = call.pop("calls")
        assert (call, finish, name, json.loads(arguments)) == ({}, "tool_calls", "get_weather", {"city": "Paris"})
        answer = client.chat.completions.create(
            model="sample", messages=[ASKED], tools=TOOLS, max_tokens=60, temperature=0
        )
        asked = answer.choices[0].message
        [called] = asked.tool_calls or ()
        turns = [ASKED, asked, {"role": "tool", "tool_call_id": called.id, "content": "sunny"}]
        assert message(client, turns, tools=TOOLS) == ({"content": "It is sunny in Paris."}, "stop")
        assert message(client, [ASKED]) == ({"content": "I do not know the weather."}, "stop")
        thought, finish = message(client, [{"role": "user", "content": "Think: what is 2 plus 3?"}])
        assert (thought, finish) == ({"reasoning_content": "2 plus 3 is 5.\n", "content": "5"}, "stop")
