"""Whatever an engine says, and whenever it leaves: the events of a stream are the whole answer."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.anthropic.stream import MessageStreamWriter
from dynamod.features.anthropic.unary import MessageUnaryWriter
from dynamod.http.metrics import Metrics
from dynamod.http.settings import FrontendSettings

from ..block_writers import FEW, HTTP_1_0, SAID, events, say


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
    assert content == json.loads(json.dumps([msgspec.to_builtins(block) for block in unary._content]))
    assert not [block for block in content if block["type"] == "text" and not block["text"]]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_halves_of_characters(text: str) -> None:
    meter = Metrics("x").model("m")
    writer = MessageStreamWriter("id", "m", 0.0, meter, lambda: None, FrontendSettings(), HTTP_1_0)  # type: ignore[arg-type]
    assert any("?" in event.get("delta", {}).get("text", "") for event in events(say(writer, [("text", text)], "stop")))
