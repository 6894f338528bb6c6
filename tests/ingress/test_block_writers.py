"""Whatever an engine says, and whenever it leaves: the events of a stream are the whole answer."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamod.features.anthropic.stream import MessageStreamWriter
from dynamod.features.anthropic.unary import MessageUnaryWriter
from dynamod.features.responses.messages import ResponsesRequest
from dynamod.features.responses.values import begun
from dynamod.features.responses.writer import ResponseStreamWriter, ResponseUnaryWriter
from dynamod.http.metrics import Metrics
from dynamod.http.settings import FrontendSettings

WORDS = st.text(max_size=4)
LEAVES = ("leave", "")  # everything that is ready is sent
ARGUMENTS = st.sampled_from(['{"x":1}', '{"x":"\u00e9\u2028"}', "", "{}"])
SAID = st.one_of(
    st.tuples(st.just("text"), WORDS),
    st.tuples(st.just("reasoning"), WORDS),
    st.tuples(st.just("call"), ARGUMENTS),
    st.just(LEAVES),
)


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def say(writer: Any, said: list[tuple[str, str]], reason: str) -> bytes:
    """Play an answer; returns what a stream has sent."""
    sent, calls = [], 0
    writer.started(1, 5, {})
    for what, text in said:
        if what == "text":
            writer.text(0, text, 1)
        elif what == "reasoning":
            writer.chunk(0, chunk(reasoning_content=text))
        elif what == "call":
            function = {"name": f"f{calls}", "arguments": text[:3]}
            writer.chunk(0, chunk(tool_calls=[{"index": calls, "id": f"c{calls}", "function": function}]))
            rest = {"index": calls, "function": {"arguments": text[3:]}}
            writer.chunk(0, chunk(tool_calls=[rest]))
            calls += 1
        elif hasattr(writer, "take"):
            sent.append(writer.take())
    writer.finish(0, reason, 7)
    assert writer.error is None
    if hasattr(writer, "take"):
        sent.append(writer.take())
    return b"".join(sent)


def events(data: bytes) -> list[dict[str, Any]]:
    found = []
    for event in data.decode().split("\n\n")[:-1]:
        name, value = event.split("\n")
        found.append(json.loads(value.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


FEW = settings(derandomize=True, suppress_health_check=list(HealthCheck))
HTTP_1_0 = (1, 0)  # without the framing of chunks


@FEW
@given(st.lists(SAID, max_size=12), st.sampled_from(["stop", "length", "tool_calls"]))
def test_messages(said: list[tuple[str, str]], reason: str) -> None:
    meter = Metrics("x").model("m")
    common = ("id", "m", 0.0, meter, lambda: None)
    unary = MessageUnaryWriter(*common)
    say(unary, said, reason)
    stream = MessageStreamWriter(*common, FrontendSettings(), HTTP_1_0)  # type: ignore[arg-type]
    found = events(say(stream, said, reason))
    content: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], content[event["index"]]
            match delta["type"]:
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
                case "signature_delta":
                    block["signature"] += delta["signature"]
                case "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
    for place, text in inputs.items():
        content[place]["input"] = json.loads(text)
    assert content == json.loads(json.dumps([_plain(block) for block in unary._content]))
    assert not [block for block in content if block["type"] == "text" and not block["text"]]


def _plain(block: Any) -> Any:
    return msgspec.to_builtins(block)


@FEW
@given(st.lists(SAID, max_size=12), st.sampled_from(["stop", "length", "tool_calls"]))
def test_responses(said: list[tuple[str, str]], reason: str) -> None:
    meter = Metrics("x").model("m")
    kept: list[Any] = []
    unary = ResponseUnaryWriter(begun(ResponsesRequest(input="x"), "m"), 0.0, meter, kept.append)
    say(unary, said, reason)
    stream = ResponseStreamWriter(
        begun(ResponsesRequest(input="x"), "m"),
        0.0,
        meter,
        kept.append,
        FrontendSettings(),
        HTTP_1_0,  # type: ignore[arg-type]
    )
    found = events(say(stream, said, reason))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    whole = found[-1]["response"]
    texts = [""] * len(whole["output"])
    for event in found:
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] += event["delta"]
    assert [_said(item) for item in whole["output"]] == [
        text or "{}" if item["type"] == "function_call" else text
        for text, item in zip(texts, whole["output"], strict=True)
    ]
    assert [(item["type"], _said(item), item["status"]) for item in whole["output"]] == [
        (item["type"], _said(item), item["status"]) for item in _plain(unary.response)["output"]
    ]
    assert (whole["status"] == "incomplete") == (reason == "length")
    assert len(kept) == 2


def _said(item: dict[str, Any]) -> str:
    return str(item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_halves_of_characters(text: str) -> None:
    meter = Metrics("x").model("m")
    writer = MessageStreamWriter("id", "m", 0.0, meter, lambda: None, FrontendSettings(), HTTP_1_0)  # type: ignore[arg-type]
    assert any("?" in event.get("delta", {}).get("text", "") for event in events(say(writer, [("text", text)], "stop")))
