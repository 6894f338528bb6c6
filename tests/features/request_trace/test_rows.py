"""Records as rows, and the files that rows go to."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.request_trace.files import TraceFiles
from dynamod.features.request_trace.rows import SCHEMA, agent_context, end_row, line, payload_row
from dynamod.features.request_trace.settings import RequestTraceSettings
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.observe.records import ChoiceEnd, PromptTokens, RequestRecord, ToolCall


def record(**more: Any) -> RequestRecord:
    given: dict[str, Any] = {
        "id": "r",
        "time": 1000.0,
        "duration_ms": 250.0,
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "m",
        "status": 200,
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "finish": "stop",
    }
    return msgspec.convert(given | more, RequestRecord)


def test_the_end_of_a_request() -> None:
    prompt = tokens.pack(range(10))
    answer = tuple(range(100, 107))
    call = ToolCall(0, "call-1", "weather")
    row = end_row(
        msgspec.structs.replace(
            record(cached_tokens=4, first_ms=20.5),
            headers={"x-session-id": "s", "x-parent-session-id": "p", "x-dynamo-session-final": "TRUE"},
            prompts=[PromptTokens(prompt, (), 4, "salt")],
            choices=[ChoiceEnd(0, "tool_calls", 7, (call,), answer), ChoiceEnd(1, "stop", 3)],
        )
    )
    assert (row["schema"], row["event_type"], row["event_time_unix_ms"]) == (SCHEMA, "request_end", 1_000_250)
    assert row["agent_context"] == {"session_id": "s", "parent_session_id": "p", "session_final": True}
    request = row["request"]
    assert (request["request_received_ms"], request["total_time_ms"], request["ttft_ms"]) == (1_000_000, 250.0, 20.5)
    assert request["finish_reason_metadata"] == {
        "finish_reason": "stop",
        "tool_calls": [{"choice_index": 0, "tool_call_index": 0, "id": "call-1", "name": "weather"}],
    }
    hashes = block_hashes(prompt + tokens.pack(answer), 4, "salt")
    assert request["replay"] == {
        "trace_block_size": 4,
        "input_length": 10,
        "input_sequence_hashes": hashes[:2],
        "completion_sequence_hashes": hashes[2:],
    }
    assert [one["output_tokens"] for one in request["choices"]] == [7, 3]
    assert json.loads(line(row)) == row, "integers up to 2 ** 64 stay integers"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, {}),
        ({"x-dynamo-session-final": "true"}, {}),
        ({"thread-id": "t", "x-dynamo-session-id": "d"}, {"session_id": "d"}),
        (
            {"x-claude-code-session-id": "c", "x-claude-code-agent-id": "a", "x-claude-code-parent-agent-id": "b"},
            {"session_id": "c", "trajectory_id": "a", "parent_session_id": "b"},
        ),
        ({"x-dynamo-session-id": "x" * 257, "x-session-id": "ok"}, {"session_id": "ok"}),
    ],
)
def test_sessions_of_agents(headers: dict[str, str], found: dict[str, str]) -> None:
    assert agent_context(headers) == found


def test_payloads_have_what_was_asked_for() -> None:
    stream = b'data: {"a": 1}\n\ndata: [DONE]\n\n'
    whole = msgspec.structs.replace(
        record(), request_body=b'{"x": 1}', response_body=stream, headers={"x-tenant": "t", "thread-id": "s"}
    )
    row = payload_row(whole, ("x-tenant", "absent"))
    assert row["payload"] == {
        "request_id": "r",
        "endpoint": "openai.chat_completion",
        "model": "m",
        "request": {"x": 1},
        "response": [{"a": 1}],
        "payload_complete": True,
        "http_request_headers": {"x-tenant": "t"},
    }
    half = payload_row(msgspec.structs.replace(whole, response_body=None), ())["payload"]
    assert (half["payload_complete"], half["payload_drop_reason"]) == (False, "too large, or no JSON")


@given(
    st.lists(st.integers(1, 40), max_size=30),
    st.integers(1, 100),
    st.integers(0, 4),
    st.sampled_from([".jsonl", ".jsonl.gz"]),
    st.lists(st.integers(1, 5), min_size=1),
)
def test_all_rows_are_in_the_files_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], size: int, rows: int, suffix: str, steps: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    files = TraceFiles(folder / "t", "agg/ingress.0", suffix, size, rows)
    lines = [b"%d%b\n" % (number, b"x" * length) for number, length in enumerate(sizes)]
    at, turn = 0, 0
    while at < len(lines):
        step = steps[turn % len(steps)]
        assert files.append(lines[at : at + step]) == len(lines[at : at + step])
        at, turn = at + step, turn + 1
    files.close()
    found = sorted(folder.iterdir())
    texts = [gzip.decompress(one.read_bytes()) if suffix.endswith("gz") else one.read_bytes() for one in found]
    assert b"".join(texts).splitlines(keepends=True) == lines
    for text in texts[:-1]:
        assert len(text) >= size or (rows and text.count(b"\n") == rows)
    assert all(rows == 0 or text.count(b"\n") <= rows for text in texts)
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in found)


def test_a_later_process_of_the_name_begins_files_of_its_own(tmp_path: Path) -> None:
    for number in range(2):
        files = TraceFiles(tmp_path / "t", "p", ".jsonl", 1000, 0)
        files.append([b"%d\n" % number])
        files.close()
    assert [one.read_text() for one in sorted(tmp_path.iterdir())] == ["0\n", "1\n"]
    assert TraceFiles(tmp_path / "absent" / "t", "p", ".jsonl", 10, 0).append([b"x\n"]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"request_trace_records": "request_end,x"}, "request_trace_records has 'x'"),
        ({"request_trace_records": ""}, "request_trace_records is empty"),
        ({"request_trace_sinks": "s3"}, "request_trace_sinks has 's3'"),
    ],
)
def test_mistakes_name_the_setting(given: dict[str, str], said: str) -> None:
    settings = RequestTraceSettings(**given)
    with pytest.raises(UserError, match=said):
        (settings.kinds(), settings.sinks())
