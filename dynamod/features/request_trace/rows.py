"""Records of requests as rows of the schema `dynamo.request.trace.v1` (pure)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dynamod.kvcache.hashes import PrefixHashes
from dynamod.message import tokens
from dynamod.observe.records import ChoiceEnd, PromptTokens, RequestRecord

SCHEMA = "dynamo.request.trace.v1"
SESSION = ("x-dynamo-session-id", "x-claude-code-session-id", "thread-id", "x-session-id")
PARENT = (
    *("x-dynamo-parent-session-id", "x-claude-code-parent-agent-id"),
    *("x-codex-parent-thread-id", "x-parent-session-id"),
)
TRAJECTORY = ("x-claude-code-agent-id",)
FINAL = "x-dynamo-session-final"
LONGEST = 256
"""Bytes of a name of a session; a longer one counts as none."""
HEADERS = (*SESSION, *PARENT, *TRAJECTORY, FINAL)
"""Headers that tell the session of an agent, of NVIDIA Dynamo, Claude Code, Codex and OpenCode."""
ENDPOINTS = {
    "/v1/chat/completions": "openai.chat_completion",
    "/v1/completions": "openai.completion",
    "/v1/responses": "openai.response",
    "/v1/embeddings": "openai.embedding",
    "/v1/messages": "anthropic.message",
}

_encode = msgspec.json.Encoder().encode


def line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON. Lone surrogates, which clients may send, are escaped."""
    try:
        return _encode(row) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def end_row(record: RequestRecord) -> dict[str, Any]:
    """The row `request_end`."""
    request: dict[str, Any] = {
        "request_id": record.id,
        "model": record.model,
        "input_tokens": record.prompt_tokens,
        "output_tokens": record.completion_tokens,
        "cached_tokens": record.cached_tokens,
        "request_received_ms": _ms(record.time),
        "total_time_ms": record.duration_ms,
        "queue_ms": record.queue_ms,
        "ttft_ms": record.first_ms,
        "migrations": record.migrations,
        "status": record.status,
        "finish_reason_metadata": _finish(record),
    }
    if record.prompts:
        request["replay"] = _replay(record.prompts[0], record.choices[0].ids if record.choices else ())
    if len(record.choices) > 1:
        request["choices"] = [
            {"choice_index": one.index, "finish_reason": one.finish, "output_tokens": one.tokens}
            for one in record.choices
        ]
    return _row("request_end", record, {"request": {key: one for key, one in request.items() if one is not None}})


def payload_row(record: RequestRecord, captured: Sequence[str]) -> dict[str, Any]:
    """The row `request_payload`. `captured`: names of headers that it has."""
    request, response = _value(record.request_body), _value(record.response_body)
    payload: dict[str, Any] = {
        "request_id": record.id,
        "endpoint": ENDPOINTS.get(record.path, record.path),
        "model": record.model,
        "request": request,
        "response": response,
        "payload_complete": request is not None and response is not None,
    }
    if not payload["payload_complete"]:
        payload["payload_drop_reason"] = "too large, or no JSON"
    if found := {name: record.headers[name] for name in captured if name in record.headers}:
        payload["http_request_headers"] = found
    return _row("request_payload", record, {"payload": payload})


def _row(kind: str, record: RequestRecord, more: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "schema": SCHEMA,
        "event_type": kind,
        "event_time_unix_ms": _ms(record.time + record.duration_ms / 1000),
        "event_source": "dynamo",
    }
    if context := agent_context(record.headers):
        row["agent_context"] = context
    return row | more


def agent_context(headers: Mapping[str, str]) -> dict[str, Any]:
    """The session of an agent, as headers tell it; empty without one."""
    found: dict[str, Any] = {}
    for key, names in (("session_id", SESSION), ("parent_session_id", PARENT), ("trajectory_id", TRAJECTORY)):
        given = (headers[name] for name in names if name in headers)
        if value := next((one for one in given if 0 < len(one.encode("utf-8", "replace")) <= LONGEST), ""):
            found[key] = value
    if found and headers.get(FINAL, "").strip().lower() == "true":
        found["session_final"] = True
    return found


def _finish(record: RequestRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"finish_reason": record.finish}
    if calls := list(_calls(record.choices)):
        found["tool_calls"] = calls
    return found


def _calls(choices: Sequence[ChoiceEnd]) -> Iterator[dict[str, Any]]:
    for choice in choices:
        for call in choice.calls:
            yield {"choice_index": choice.index, "tool_call_index": call.index, "id": call.id, "name": call.name}


def _replay(prompt: PromptTokens, answer: Sequence[int]) -> dict[str, Any]:
    """Hashes of the full blocks of a prompt, and of those that the first choice has filled."""
    size, count = prompt.block_size, tokens.count(prompt.ids)
    hashes = PrefixHashes(size, prompt.ids, prompt.salt)
    inputs = list(hashes.blocks)
    rest = prompt.ids[len(inputs) * size * 4 :]
    hashes.extend(rest + tokens.pack(answer))
    return {
        "trace_block_size": size,
        "input_length": count,
        "input_sequence_hashes": inputs,
        "completion_sequence_hashes": hashes.blocks[len(inputs) :],
    }


def _value(body: bytes | None) -> Any:
    """A body as a JSON value; a list of its events for a stream; None for what is neither."""
    if not body:
        return None
    try:
        if body.startswith(b"data:") or b"\ndata:" in body:
            data = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
            return [msgspec.json.decode(one) for one in data if one != b"[DONE]"]
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
