"""Whatever an engine says, and whenever it leaves: the events of a stream are the whole answer."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.responses.items import as_input
from dynamod.features.responses.messages import InputPart, ResponsesRequest
from dynamod.features.responses.values import begun, message_of
from dynamod.features.responses.writer import ResponseStreamWriter, ResponseUnaryWriter
from dynamod.http.metrics import Metrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Logprob

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


@FEW
@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5))
def test_reasoning_as_a_summary(thoughts: list[str]) -> None:
    """Where the client asks for summaries, reasoning comes there, and in no other place."""
    meter = Metrics("x").model("m")
    kept: list[Any] = []
    common = (0.0, meter, kept.append)
    unary = ResponseUnaryWriter(begun(ResponsesRequest(input="x"), "m"), *common)
    stream = ResponseStreamWriter(begun(ResponsesRequest(input="x"), "m"), *common, FrontendSettings(), HTTP_1_0)  # type: ignore[arg-type]
    for writer in (unary, stream):
        writer.summary = True
        writer.started(1, 5, {})
        for text in thoughts:
            writer.chunk(0, {"choices": [{"delta": {"reasoning_content": text}}]})
        writer.text(0, "a", 1)
        writer.finish(0, "stop", 1)
    found = events(stream.take())
    whole = "".join(thoughts)
    own = [event for event in found if event.get("output_index") == 0]
    names = [event["type"].removeprefix("response.") for event in own]
    assert names[:2] == ["output_item.added", "reasoning_summary_part.added"]
    assert names[-3:] == ["reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"]
    assert {*names[2:-3]} == {"reasoning_summary_text.delta"}
    assert "".join(event["delta"] for event in own[2:-3]) == own[-3]["text"] == whole
    for response in (found[-1]["response"], msgspec.to_builtins(unary.response)):
        thought = response["output"][0]
        assert (thought["summary"], thought["content"]) == ([{"type": "summary_text", "text": whole}], [])
    assert message_of(unary.response).reasoning_content == whole
    assert as_input(unary.response.output[0]).summary == [InputPart("summary_text", whole)]


def test_log_probabilities_of_the_text() -> None:
    meter = Metrics("x").model("m")
    entry = Logprob("a", b"a", -0.5, (("b", b"b", -1.0),))
    value = {"token": "a", "bytes": [97], "logprob": -0.5}
    value["top_logprobs"] = [{"token": "b", "bytes": [98], "logprob": -1.0}]
    kept: list[Any] = []
    common = (0.0, meter, kept.append)
    unary = ResponseUnaryWriter(begun(ResponsesRequest(input="x"), "m"), *common)
    stream = ResponseStreamWriter(begun(ResponsesRequest(input="x"), "m"), *common, FrontendSettings(), HTTP_1_0)  # type: ignore[arg-type]
    for writer in (unary, stream):
        writer.started(1, 5, {})
        writer.logprobs(0, (entry,))
        writer.chunk(0, {"choices": [{"delta": {"reasoning_content": "hm"}}]})
        writer.logprobs(0, (entry,))
        writer.text(0, "a", 1)
        writer.finish(0, "stop", 1)
    found = events(stream.take())
    assert [event["logprobs"] for event in found if event["type"] == "response.output_text.delta"] == [[value]]
    for whole in (found[-1]["response"], msgspec.to_builtins(unary.response)):
        thought, text = whole["output"]
        assert text["content"][0]["logprobs"] == [value]
        assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
