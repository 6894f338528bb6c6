"""`tool_choice` of the type allowed_tools: some of the tools, and whether one of them must be called."""

from typing import Any

import msgspec
import pytest

from dynamod.features.responses.messages import ResponsesRequest
from dynamod.features.responses.translate import check, to_chat
from dynamod.ingress.api.chat import ChatCompletions
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS = [tool("a"), tool("b"), tool("c")]


def chat_of(mode: Any, *names: str) -> ChatRequest:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool(name) for name in names]}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": choice}
    request = msgspec.convert(body, ChatRequest)
    ChatCompletions().check(request)
    return request


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_other_tools_are_left_out(mode: str) -> None:
    chat = chat_of(mode, "c", "a")
    assert chat.tools == [tool("a"), tool("c")]
    assert chat.tool_choice == mode
    assert chat.must_call == (mode == "required")


@pytest.mark.parametrize(("mode", "names"), [("none", ["a"]), ("auto", []), ("auto", ["a", "d"]), (None, ["a"])])
def test_what_is_wrong_is_said(mode: Any, names: list[str]) -> None:
    with pytest.raises(BadRequest, match="allowed_tools"):
        chat_of(mode, *names)


def test_a_tool_that_is_not_there_is_named() -> None:
    with pytest.raises(BadRequest, match="names 'd', which is not among the tools"):
        chat_of("auto", "a", "d")


def test_responses_have_it_too() -> None:
    tools = [{"type": "function", "name": name, "parameters": {}} for name in "abc"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]}
    request = msgspec.convert({"input": "x", "tools": tools, "tool_choice": choice}, ResponsesRequest)
    check(request)
    chat = to_chat(request, ())
    assert [one["function"]["name"] for one in chat.tools or ()] == ["b"]
    assert chat.tool_choice == "required"
