"""Whatever an engine says, and whenever it leaves: the lines of a stream are the whole answer."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.ollama.writer import OllamaStreamWriter, OllamaUnaryWriter, chat_line, generate_line
from dynamod.http.metrics import Metrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Logprob
from dynamod.message.errors import EngineFailed

from ..block_writers import FEW, HTTP_1_0, SAID, say


def stream_of(make: Any = chat_line) -> OllamaStreamWriter:
    return OllamaStreamWriter(make, "m", Metrics("x").model("m"), 0.0, FrontendSettings(), HTTP_1_0)  # type: ignore[arg-type]


def unary_of(make: Any = chat_line) -> OllamaUnaryWriter:
    return OllamaUnaryWriter(make, "m", Metrics("x").model("m"), 0.0)


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def whole(writer: OllamaUnaryWriter) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(writer._answer()))
    return found


@FEW
@given(st.lists(SAID, max_size=12), st.sampled_from(["stop", "length", "tool_calls"]))
def test_chats(said: list[tuple[str, str]], reason: str) -> None:
    unary, stream = unary_of(), stream_of()
    say(unary, said, reason)
    expected = whole(unary)
    *pieces, last = lines(say(stream, said, reason))
    messages = [piece["message"] for piece in [*pieces, last]]
    assert "".join(one["content"] for one in messages) == expected["message"]["content"]
    assert "".join(one.get("thinking", "") for one in messages) == expected["message"].get("thinking", "")
    calls = [call for one in messages for call in one.get("tool_calls", ())]
    assert calls == expected["message"].get("tool_calls", [])
    assert [call["function"]["index"] for call in calls] == [*range(len(calls))]
    assert not any(piece["done"] for piece in pieces)
    assert last["done"]
    assert last["done_reason"] == expected["done_reason"] == ("length" if reason == "length" else "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (5, 7)
    assert all(one["role"] == "assistant" for one in messages)


def test_prompts() -> None:
    said = [("reasoning", "r"), ("text", "a"), ("leave", ""), ("text", "b")]
    unary = unary_of(generate_line)
    say(unary, said, "stop")
    assert (whole(unary)["response"], whole(unary)["thinking"]) == ("ab", "r")
    found = lines(say(stream_of(generate_line), said, "stop"))
    assert "".join(line["response"] for line in found) == "ab"
    assert found[0]["thinking"] == "r"


def test_log_probabilities_travel_with_their_text() -> None:
    entry = Logprob("a", b"a", -0.5, (("b", b"b", -1.0),))
    for writer in (unary_of(), stream_of()):
        writer.started(1, 5, {})
        writer.logprobs(0, (entry,))
        writer.text(0, "a", 1)
        writer.finish(0, "stop", 1)
    scored = {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": -1.0, "bytes": [98]}],
    }
    stream = stream_of()
    stream.started(1, 5, {})
    stream.logprobs(0, (entry,))
    stream.text(0, "a", 1)
    assert [line.get("logprobs") for line in lines(stream.take())] == [[scored]]
    unary = unary_of()
    unary.started(1, 5, {})
    unary.logprobs(0, (entry,))
    unary.text(0, "a", 1)
    unary.finish(0, "stop", 1)
    assert whole(unary)["logprobs"] == [scored]


def test_a_stream_ends_with_its_error() -> None:
    stream = stream_of()
    stream.started(1, 5, {})
    stream.text(0, "a", 1)
    stream.events.committed = True
    stream.fail(EngineFailed("the engine is gone"))
    assert lines(stream.take())[-1] == {"error": "the engine is gone"}


@pytest.mark.parametrize("make", [chat_line, generate_line])
def test_a_line_of_silence_is_a_line(make: Any) -> None:
    (line,) = lines(stream_of(make)._frames.comment("keep-alive"))
    assert line["done"] is False
    assert line["model"] == "m"


def test_halves_of_characters() -> None:
    found = lines(say(stream_of(), [("text", "a\udfffb")], "stop"))
    assert found[0]["message"]["content"] == "a?b"
