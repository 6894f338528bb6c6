"""Writers of answers in blocks: what an engine may say, playing it to a writer, and the events that a stream sent."""

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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
