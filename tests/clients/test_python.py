"""The clients of Python that agents use: their flows, unchanged, against `dynamo serve`."""

from typing import Any

import pytest

from . import judge
from .judge import value

ORDERS = [
    *[("openai_sdk", flow) for flow in ("parse", "parsed_stream", "responses_parse")],
    *[("openai_agents", flow) for flow in ("responses_output", "chat_output")],
    ("anthropic_sdk", "parse"),
    *[("langchain_agent", flow) for flow in ("structured_json_schema", "structured_function_calling")],
    *[("instructor_modes", flow) for flow in ("tools", "json_schema", "partial")],
    *[("pydantic_ai_agent", flow) for flow in ("tool_output", "native_output", "responses_output", "streamed_output")],
    ("llamaindex_agent", "structured"),
]
CALLS = [
    ("langchain_agent", "bound_tools"),
    ("langchain_agent", "responses_tools"),
    ("llamaindex_agent", "function_calling"),
]
LOOPS = [
    *[("openai_sdk", flow) for flow in ("tool_loop", "responses_loop")],
    ("anthropic_sdk", "tool_loop"),
    *[("langchain_agent", flow) for flow in ("agent", "responses_agent")],
    ("pydantic_ai_agent", "agent"),
    ("llamaindex_agent", "agent"),
]


@pytest.mark.parametrize(("program", "flow"), ORDERS)
def test_an_object_of_the_callers_class(run: Any, program: str, flow: str) -> None:
    judge.order(value(run(program), flow))


@pytest.mark.parametrize(("program", "flow"), CALLS)
def test_calls(run: Any, served: Any, program: str, flow: str) -> None:
    judge.calls(value(run(program), flow), served.choice)


@pytest.mark.parametrize(("program", "flow"), LOOPS)
def test_a_loop_of_calls_that_ends(run: Any, served: Any, program: str, flow: str) -> None:
    judge.loop(value(run(program), flow), served.choice)


@pytest.mark.parametrize("flow", ["responses_loop", "responses_loop_streamed", "chat_loop", "chat_loop_streamed"])
@pytest.mark.parametrize("program", ["openai_agents"])
def test_a_loop_of_calls_to_an_object_by_the_agents_sdk(run: Any, program: str, served: Any, flow: str) -> None:
    judge.loop_to_order(value(run(program), flow), served.choice)


@pytest.mark.parametrize("program", ["langchain_agent"])
def test_a_loop_of_calls_to_an_object(run: Any, program: str, served: Any) -> None:
    """LangChain passes no choice of tools on where it asks for an object, so noise never calls."""
    found = value(run(program), "agent_output")
    judge.order(found["order"])
    assert found["calls"] == ([judge.CALL] if served.choice == "auto" else [])


@pytest.mark.parametrize("program", ["openai_sdk"])
def test_calls_of_the_openai_sdk(run: Any, program: str, served: Any) -> None:
    found = run(program)
    judge.calls([["get_weather", arguments] for arguments in value(found, "parsed_tools")], served.choice)
    finish, *call = value(found, "streamed_tools")
    assert finish == "tool_calls"
    judge.calls([call], served.choice)


@pytest.mark.parametrize("program", ["anthropic_sdk"])
def test_messages_of_the_anthropic_sdk(run: Any, program: str, served: Any) -> None:
    found = run(program)
    text, stop = value(found, "message")
    assert [text, stop] == value(found, "streamed")
    assert [text, stop] == [judge.UNKNOWN, "end_turn"] if served.choice == "auto" else text and stop == "max_tokens"
    counted, taken = value(found, "counted")
    assert counted == taken > 0
    assert value(found, "tool_loop")["stop"] == "tool_use"
    runner = value(found, "tool_runner")
    judge.calls(runner["calls"], served.choice)
    assert runner["text"] == (judge.ANSWER if served.choice == "auto" else "")


@pytest.mark.parametrize("program", ["ollama_client"])
def test_answers_of_the_ollama_client(run: Any, program: str, served: Any) -> None:
    ollama(run(program), served)


def ollama(found: dict[str, Any], served: Any) -> None:
    """What came of the flows of one of Ollama's clients."""
    for flow in ("chat", "generate"):
        whole, pieces, reason = value(found, flow)
        assert whole == pieces != ""
        assert reason == ("stop" if served.choice == "auto" else "length")
    judge.order(value(found, "form"))
    looped = value(found, "tool_loop")
    if served.choice == "auto":
        judge.calls(looped["calls"], served.choice)
        assert looped["text"] == judge.ANSWER
    assert value(found, "models") == [["sample"], ["sample"], True]
    if served.engine == "mocker":
        assert value(found, "vectors") == [2, True]


@pytest.mark.parametrize("program", ["langchain_agent", "llamaindex_agent"])
def test_text_in_one_piece_and_streamed(run: Any, program: str) -> None:
    whole, streamed = value(run(program), "text")
    assert whole == streamed != ""


@pytest.mark.parametrize("program", ["langchain_agent"])
def test_json_mode_of_langchain(run: Any, program: str, served: Any) -> None:
    if served.engine != "mocker":
        pytest.skip("the sample model never ends an object that may have any members")
    assert isinstance(value(run(program), "json_mode"), dict)
