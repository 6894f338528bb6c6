"""The rows: `dynamo.request.trace.v1`, from the record of a request."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynamod.kvcache.hashes import PrefixHashes
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.observe.records import ChoiceEnd, PromptTokens, RequestRecord, ToolCall

SCHEMA = "dynamo.request.trace.v1"
LONGEST = 256
"""Bytes of the name of a session."""
SESSION = ("x-dynamo-session-id", "x-claude-code-agent-id", "x-claude-code-session-id", "thread-id", "x-session-id")
PARENT = (
    *("x-dynamo-parent-session-id", "x-claude-code-parent-agent-id"),
    *("x-codex-parent-thread-id", "x-parent-session-id"),
)
FINAL, TRAJECTORY, PARENT_TRAJECTORY = (
    "x-dynamo-session-final",
    "x-dynamo-trajectory-id",
    "x-dynamo-parent-trajectory-id",
)
HEADERS = (*SESSION, *PARENT, FINAL, TRAJECTORY, PARENT_TRAJECTORY)
"""Headers that say to which session of an agent a request belongs; the first of SESSION and of PARENT counts."""
ENDPOINTS = {
    "chat_completions": "openai.chat_completion",
    "completions": "openai.completion",
    "responses": "openai.response",
}


class AgentContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """The session of an agent."""

    session_id: str = ""
    parent_session_id: str = ""
    session_final: bool = False
    trajectory_id: str = ""
    parent_trajectory_id: str = ""


class Call(msgspec.Struct, frozen=True):
    """A call of a tool, without its arguments."""

    choice_index: int
    tool_call_index: int
    id: str
    name: str


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the first choice ended, and the calls of all."""

    finish_reason: str
    tool_calls: list[Call] = []


class Replay(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replay needs. Hashes are those of full blocks; those of the completion follow those of the prompt."""

    trace_block_size: int
    input_length: int
    input_sequence_hashes: Sequence[int]
    completion_sequence_hashes: Sequence[int] = ()


class ChoiceRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several choices."""

    choice_index: int
    output_tokens: int
    finish_reason: str = ""
    replay: Replay | None = None


class RequestRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request. `choices`: where there are several; `replay` is the first one's. Times are milliseconds."""

    request_id: str
    model: str
    input_tokens: int
    output_tokens: int
    request_received_ms: int
    total_time_ms: float
    finish_reason_metadata: Finish | None = None
    replay: Replay | None = None
    choices: list[ChoiceRow] = []
    ttft_ms: float | None = None
    queue_ms: float | None = None
    cached_tokens: int | None = None
    status: int = 200
    error: str = ""
    migrations: int = 0


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the client sent and got; of a stream `response` is the list of its events."""

    request_id: str
    endpoint: str
    model: str
    payload_complete: bool
    request: Any = None
    response: Any = None
    payload_drop_reason: str = ""
    http_request_headers: Mapping[str, str] = {}


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. All but `schema` and `event_type` depends on the event."""

    event_type: str
    event_time_unix_ms: int
    schema: str = msgspec.field(default_factory=lambda: SCHEMA)  # a factory: defaults are left out
    event_source: str = msgspec.field(default_factory=lambda: "dynamo")
    agent_context: AgentContext | None = None
    request: RequestRow | None = None
    payload: Payload | None = None


_encode = msgspec.json.Encoder().encode


def agent_of(headers: Mapping[str, str]) -> AgentContext | None:
    """The session that the headers of a request name; None: none. Names that are too long do not count."""

    def first(*names: str) -> str:
        found = (headers.get(name, "") for name in names)
        return next((one for one in found if one and len(one.encode(errors="replace")) <= LONGEST), "")

    session, parent, trajectory = first(*SESSION), first(*PARENT), first(TRAJECTORY)
    if not session and not trajectory:
        return None
    claude = headers.get("x-claude-code-session-id", "")
    if not parent and claude and session == headers.get("x-claude-code-agent-id"):
        parent = first("x-claude-code-session-id")
    final = headers.get(FINAL, "").strip().lower() == "true"
    return AgentContext(session, parent, final, trajectory, first(PARENT_TRAJECTORY))


def end_row(record: RequestRecord) -> bytes:
    """The `request_end` row of a record, as a line."""
    choices = record.choices
    calls = [_call(one.index, call) for one in choices for call in one.calls]
    reason = choices[0].finish if choices else ""
    replays = [_replay(record, one) for one in choices]
    several = []
    if len(choices) > 1:
        pairs = zip(choices, replays, strict=True)
        several = [ChoiceRow(one.index, one.tokens, one.finish, replay) for one, replay in pairs]
    received = round(record.time * 1000)
    request = RequestRow(
        record.id,
        record.model,
        record.prompt_tokens,
        record.completion_tokens,
        received,
        record.duration_ms,
        Finish(reason, calls) if reason else None,
        replays[0] if replays else None,
        several,
        record.first_ms,
        record.queue_ms,
        record.cached_tokens,
        record.status,
        record.error,
        record.migrations,
    )
    ended = round(record.time * 1000 + record.duration_ms)
    return _line(Row("request_end", ended, agent_context=agent_of(record.headers), request=request))


def payload_row(record: RequestRecord, headers: Sequence[str]) -> bytes:
    """The `request_payload` row of a record, as a line. `headers`: names of headers that the row has."""
    asked, answered = _json(record.request_body), _json(record.response_body)
    lacks = "too_large" if record.request_body is None or record.response_body is None else ""
    if not lacks and (asked is None or answered is None):
        lacks = "no_json"
    payload = Payload(
        record.id,
        ENDPOINTS.get(record.endpoint, record.endpoint),
        record.model,
        not lacks,
        asked,
        answered,
        lacks,
        {name: record.headers[name] for name in headers if name in record.headers},
    )
    agent = agent_of(record.headers)
    return _line(Row("request_payload", round(record.time * 1000), agent_context=agent, payload=payload))


def _line(row: Row) -> bytes:
    try:
        return _encode(row) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which clients may send: its escape means the same
        return json.dumps(msgspec.to_builtins(row)).encode() + b"\n"


def _call(choice: int, call: ToolCall) -> Call:
    return Call(choice, call.index, call.id, call.name)


def _replay(record: RequestRecord, choice: ChoiceEnd) -> Replay | None:
    """None: the engine takes text, or has no blocks."""
    place = choice.index // record.samples
    if place >= len(record.prompts) or record.prompts[place].block_size < 1:
        return None
    prompt = record.prompts[place]
    length, size = tokens.count(prompt.ids), prompt.block_size
    hashes = _hashes(prompt, choice.ids)
    full = length // size
    return Replay(size, length, hashes[:full], hashes[full:])


def _hashes(prompt: PromptTokens, answer: Sequence[int]) -> Sequence[int]:
    return PrefixHashes(prompt.block_size, prompt.ids + tokens.pack(answer), prompt.salt).blocks


def _json(body: bytes | None) -> Any:
    """A body as a value; the events of a stream as a list; None: it is neither."""
    if not body:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    found = []
    for line in body.split(b"\n"):
        if line.startswith(b"data: {"):
            try:
                found.append(json.loads(line[len(b"data: ") :]))
            except (ValueError, RecursionError):
                return None
    return found or None


def read_rows(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """All rows of files, packed or not. A last line that was cut is left out. Raises UserError with the line."""
    for path in paths:
        try:
            data = path.read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        except (OSError, EOFError) as error:
            raise UserError(f"{path}: {error}", "give files of a request trace") from None
        lines = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)  # msgspec refuses halves of surrogate pairs, which clients may send
            except (ValueError, RecursionError) as error:
                if number == len(lines):
                    continue
                raise UserError(f"{path}:{number}: {error}", "give files of a request trace") from None
            if not isinstance(row, dict) or row.get("schema") != SCHEMA:
                raise UserError(f"{path}:{number}: this is no row of {SCHEMA}", "give files of a request trace")
            yield row
