"""The clients of Node that agents use: their flows, unchanged, against `dynamo serve`."""

from typing import Any

import pytest

from . import judge
from .judge import value
from .test_python import ollama

AI_SDK = ("chat", "responses")


@pytest.mark.parametrize("flow", ["parse", "responses_parse"])
@pytest.mark.parametrize("program", ["openai_node"])
def test_zod_by_the_openai_sdk(node: Any, program: str, flow: str) -> None:
    judge.order(value(node(program), flow))


@pytest.mark.parametrize("program", ["openai_node"])
def test_tools_that_the_openai_sdk_runs(node: Any, program: str, served: Any) -> None:
    for flow in ("run_tools", "run_tools_streamed"):
        found = value(node(program), flow)
        judge.calls(found["calls"], served.choice)
        if served.choice == "auto":
            assert found["text"] == judge.ANSWER


@pytest.mark.parametrize("flow", ["tool_loop", "responses_loop"])
@pytest.mark.parametrize("program", ["openai_node"])
def test_loops_by_the_openai_sdk(node: Any, program: str, served: Any, flow: str) -> None:
    judge.loop(value(node(program), flow), served.choice)


@pytest.mark.parametrize("program", ["openai_node"])
def test_a_stream_by_the_openai_sdk(node: Any, program: str) -> None:
    pieces, whole = value(node(program), "text_stream")
    assert pieces == whole != ""


@pytest.mark.parametrize("api", AI_SDK)
@pytest.mark.parametrize("flow", ["object", "object_stream", "output"])
@pytest.mark.parametrize("program", ["ai_sdk"])
def test_objects_by_the_ai_sdk(node: Any, program: str, api: str, flow: str) -> None:
    judge.order(value(node(program), f"{api}_{flow}"))


@pytest.mark.parametrize("api", AI_SDK)
@pytest.mark.parametrize("flow", ["loop", "loop_stream"])
@pytest.mark.parametrize("program", ["ai_sdk"])
def test_loops_by_the_ai_sdk(node: Any, program: str, served: Any, api: str, flow: str) -> None:
    judge.loop(value(node(program), f"{api}_{flow}"), served.choice)


@pytest.mark.parametrize("api", AI_SDK)
@pytest.mark.parametrize("program", ["ai_sdk"])
def test_a_loop_to_an_object_by_the_ai_sdk(node: Any, program: str, served: Any, api: str) -> None:
    judge.loop_to_order(value(node(program), f"{api}_loop_output"), served.choice)


@pytest.mark.parametrize("api", AI_SDK)
@pytest.mark.parametrize("program", ["ai_sdk"])
def test_a_stream_by_the_ai_sdk(node: Any, program: str, served: Any, api: str) -> None:
    pieces, whole, finish = value(node(program), f"{api}_text_stream")
    assert pieces == whole != ""
    assert finish == ("stop" if served.choice == "auto" else "length")


@pytest.mark.parametrize("api", AI_SDK)
@pytest.mark.parametrize("program", ["ai_sdk"])
def test_a_conversation_by_the_ai_sdk(node: Any, program: str, served: Any, api: str) -> None:
    longer, text = value(node(program), f"{api}_conversation")
    assert longer, "the second prompt has the first question and its answer"
    assert text == judge.UNKNOWN if served.choice == "auto" else text


@pytest.mark.parametrize("program", ["anthropic_node"])
def test_messages_by_the_anthropic_sdk(node: Any, program: str, served: Any) -> None:
    found = node(program)
    text, stop = value(found, "message")
    assert [text, stop] == value(found, "streamed")
    assert [text, stop] == [judge.UNKNOWN, "end_turn"] if served.choice == "auto" else text and stop == "max_tokens"
    counted, taken = value(found, "counted")
    assert counted == taken > 0


@pytest.mark.parametrize("program", ["anthropic_node"])
def test_tools_by_the_anthropic_sdk(node: Any, program: str, served: Any) -> None:
    found = node(program)
    answered = value(found, "tool_loop")
    assert answered["stop"] == "tool_use"
    judge.loop(answered, served.choice)
    runner = value(found, "tool_runner")
    judge.calls(runner["calls"], served.choice)
    if served.choice == "auto":
        assert runner["text"] == judge.ANSWER


@pytest.mark.parametrize("program", ["ollama_node"])
def test_answers_of_the_ollama_client(node: Any, program: str, served: Any) -> None:
    ollama(node(program), served)
