"""What a line has: fields, and bodies without the values that must not be kept."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.control.table import SCALE
from dynamod.extension.command import CommandCall, Peer
from dynamod.features.audit.cli import as_json, as_text
from dynamod.features.audit.lines import command_line, dropped_line, masked, redacted, request_line
from dynamod.observe.records import RequestRecord, WorkerPlace

RECORD = RequestRecord(
    id="mine",
    time=1764172800.25,
    duration_ms=34.5,
    client="198.51.100.7",
    key="team-a",
    method="POST",
    path="/v1/chat/completions",
    model="sample",
    status=200,
    prompt_tokens=22,
    completion_tokens=16,
    finish="stop",
    workers=(WorkerPlace(7, "agg/Worker.0", "one"), WorkerPlace(8), WorkerPlace(7, "agg/Worker.0", "one", choice=1)),
    migrations=1,
    notes={"tags": "blue"},
    node="one",
    process="agg/ingress.0",
)
NAMES = frozenset({"secret", "api_key"})
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "secret", "API_KEY", "Secret"]), inner),
    max_leaves=12,
)


def entry(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line)
    return found


def read(line: bytes) -> dict[str, Any]:
    """As `dynamo audit` has it."""
    found = entry(line)
    return {**found, "time": datetime.fromisoformat(found["time"])}


def test_a_request() -> None:
    found = entry(request_line(RECORD))
    assert (found["kind"], found["time"]) == ("request", "2025-11-26T16:00:00.250000Z")
    assert (found["workers"], found["migrations"], found["cached_tokens"]) == (["agg/Worker.0", "8"], 1, None)
    assert found["notes"] == {"tags": "blue"}
    assert not {"request_body", "response_body"} & found.keys()
    text = as_text(read(request_line(RECORD)))
    assert text.startswith(
        "2025-11-26T16:00:00.250Z 200 POST /v1/chat/completions tokens=22+16 workers=agg/Worker.0,8 "
    )
    assert " key=team-a client=198.51.100.7 " in text
    assert json.loads(as_json(read(request_line(RECORD))))["time"] == "2025-11-26T16:00:00.250Z"


def test_a_command_and_what_is_missing() -> None:
    line = command_line(CommandCall(SCALE, {"replicas": 2}, "two", Peer(0)), 1764172800.0, 200, "", "one")
    found = entry(line)
    assert (found["kind"], found["command"], found["uid"], found["pid"]) == ("command", "scale", 0, None)
    assert found["sender"] == "two"
    text = as_text(read(line))
    assert text.startswith(
        '2025-11-26T16:00:00.000Z 200 command scale arguments={"replicas": 2} user=root sender=two duration_ms='
    )
    assert entry(dropped_line(7))["lines"] == 7
    assert as_text(read(dropped_line(7))).endswith("7 lines are missing here: they could not be written")


def test_text_that_cannot_be_encoded() -> None:
    body = b'{"\\ud800": ["\\udfff", {"secret": "\\ud800"}]}'
    record = msgspec.structs.replace(RECORD, path="/v1/\udcff", request_body=body)
    found = entry(request_line(record, NAMES))
    assert (found["path"], found["request_body"]) == ("/v1/?", {"?": ["?", {"secret": "***"}]})
    command = command_line(CommandCall(SCALE, {"component": "\ud800"}), 0.0, 404, "", "one")
    assert entry(command)["arguments"] == {"component": "?"}


def test_secrets_of_arguments_are_masked() -> None:
    given = {
        "graph": {"Frontend": {"api_keys": "a,b", "api-key-file": "", "port": 1}, "envs": [{"HF_TOKEN": "t"}]},
        "text": "x" * 1000,
    }
    assert masked(given) == {
        "graph": {"Frontend": {"api_keys": "***", "api-key-file": "", "port": 1}, "envs": [{"HF_TOKEN": "***"}]},
        "text": "x" * 200 + "...",
    }
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    assert len(repr(masked(deep))) < 100


def test_text_cannot_change_the_terminal() -> None:
    found = as_text({"kind": "request", "time": datetime.now(UTC), "path": "/v1\n\x1b[31m", "model": "a\rb"})
    assert found.isprintable()


@given(values)
def test_redacted_values_are_nowhere(value: Any) -> None:
    found = redacted(json.dumps(value).encode(), NAMES)

    def check(before: Any, after: Any) -> None:
        if isinstance(before, dict):
            assert before.keys() == after.keys()
            for key, one in before.items():
                if key.lower() in NAMES:
                    assert after[key] == "***"
                else:
                    check(one, after[key])
        elif isinstance(before, list):
            assert len(before) == len(after)
            for one, other in zip(before, after, strict=True):
                check(one, other)
        else:
            assert before == after

    check(value, found)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'data: {"a": 1, "secret": 2}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n', [{"a": 1, "secret": "***"}, {"a": 2}]),
        (b'event: x\ndata: {"a": 1}\n\ndata: {"secret": "cut', [{"a": 1}]),
        (b'data: {"a": 1}\n\ndata: {"secret": 2\n\n', [{"a": 1}]),
        (b'{"secret": "cut', None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b"", None),
        (None, None),
    ],
)
def test_streams_and_what_is_no_json(body: bytes | None, found: Any) -> None:
    assert redacted(body, NAMES) == found
