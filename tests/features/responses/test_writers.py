"""Whatever an engine says, and whenever it leaves: the events of a stream are the whole answer."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.responses.messages import ResponsesRequest
from dynamod.features.responses.values import begun
from dynamod.features.responses.writer import ResponseStreamWriter, ResponseUnaryWriter
from dynamod.http.metrics import Metrics
from dynamod.http.settings import FrontendSettings

from ..block_writers import FEW, HTTP_1_0, SAID, events, say


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
        (item["type"], _said(item), item["status"]) for item in msgspec.to_builtins(unary.response)["output"]
    ]
    assert (whole["status"] == "incomplete") == (reason == "length")
    assert len(kept) == 2


def _said(item: dict[str, Any]) -> str:
    return str(item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
