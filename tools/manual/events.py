"""The page about events: server-sent events of the HTTP API, and what workers publish for routers."""

import ast
import inspect
from types import ModuleType
from typing import get_args

import msgspec

from dynamod.features.anthropic import stream
from dynamod.features.responses import writer
from dynamod.message import kv_events

from .text import code, page, table

CHUNKS = (
    ("`data: {...}`", "a chunk of the answer: `choices[].delta` (chat) or `choices[].text` (completions)"),
    ("`data: {...}` with `usage`", "the last chunk, with `stream_options.include_usage`; its `choices` are empty"),
    ('`data: {"error": ...}`', "the answer failed after its first chunk; [error codes](errors.md) has the form"),
    ("`data: [DONE]`", "the end of the stream"),
    ("`: ...`", "a comment that keeps the connection open; clients skip it"),
)
RESPONSES = {
    "created": "the response exists; `response.id` names it",
    "in_progress": "the model works on it",
    "output_item.added": "an item begins: a message, a reasoning text or a call of a function",
    "content_part.added": "a part of the item begins",
    "output_text.delta": "a piece of text",
    "reasoning_text.delta": "a piece of reasoning",
    "reasoning_summary_part.added": "with `reasoning.summary`: the reasoning begins",
    "reasoning_summary_text.delta": "with `reasoning.summary`: a piece of reasoning",
    "function_call_arguments.delta": "a piece of the arguments of a call, as JSON text",
    "output_text.done": "the whole text of a part",
    "reasoning_text.done": "the whole reasoning",
    "reasoning_summary_text.done": "with `reasoning.summary`: the whole reasoning",
    "reasoning_summary_part.done": "with `reasoning.summary`: the reasoning is complete",
    "function_call_arguments.done": "the whole arguments, with the name of the function",
    "custom_tool_call_input.delta": "the input of a call of a custom tool, in one piece",
    "custom_tool_call_input.done": "the whole input",
    "content_part.done": "the part is complete",
    "output_item.done": "the item is complete",
    "completed": "the whole response, which ended as the model wanted",
    "incomplete": "the whole response, which a limit ended; `incomplete_details` says which",
    "failed": "the response with its `error`",
}
"""The events of `POST /v1/responses` after `response.`, in their order."""
MESSAGES = {
    "message_start": "the message without content",
    "ping": "nothing happened; clients skip it",
    "content_block_start": "a block begins: `text`, `thinking` or `tool_use`",
    "content_block_delta": "a piece: `text_delta`, `thinking_delta`, `signature_delta` or `input_json_delta`",
    "content_block_stop": "the block is complete",
    "message_delta": "`stop_reason`, `stop_sequence` and `usage`",
    "message_stop": "the end of the stream",
    "error": "the answer failed; no event follows",
}
"""The events of `POST /v1/messages`, in their order."""


def events() -> str:
    """The page."""
    intro = (
        "dynamod has two kinds of events. Clients read server-sent events of streamed answers. Routers, and files that "
        "use the [Python interface](python.md), read what workers publish. The state of processes is not an event: "
        "`dynamo ps` and `dynamo status` show it, and `dynamo logs -f` follows log lines."
    )
    lists = [
        ("Chat and completions", ("line", "meaning"), CHUNKS),
        ("Responses", ("event", "meaning"), [(code(f"response.{name}"), text) for name, text in RESPONSES.items()]),
        ("Messages", ("event", "meaning"), [(code(name), text) for name, text in MESSAGES.items()]),
    ]
    streams = [f"### {title}\n\n{table(head, rows)}" for title, head, rows in lists]
    return page("Events", intro, "## Server-sent events", *streams, _workers())


def _workers() -> str:
    text = (
        "A worker publishes events to each router that subscribes, on the connection between the two processes. An "
        "item of the stream is a list of events in MessagePack. An event is a list: its kind, then its fields in the "
        "order of the table. The first item is the state at that moment. A release skips kinds, and fields at the end, "
        "that it does not know. Names of blocks and hashes are unsigned numbers of 64 bits."
    )
    rows = [(code(one.__struct_config__.tag), _fields(one), _first(one)) for one in get_args(kv_events.WorkerEvent)]
    inner = (kv_events.ScheduledRequests, kv_events.QueuedRequests)
    parts = [f"`{one.__name__}` is a list of {_fields(one)}. {' '.join((one.__doc__ or '').split())}" for one in inner]
    return "\n\n".join(["## Events of workers", text, table(("kind", "fields", "meaning"), rows), *parts])


def _fields(one: type[msgspec.Struct]) -> str:
    return ", ".join(map(code, one.__struct_fields__))


def _first(one: type[msgspec.Struct]) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join(inspect.getdoc(one).partition("\n\n")[0].split()) if one.__doc__ else ""  # type: ignore[union-attr]


def sent(module: ModuleType) -> set[str]:
    """Names of events that a module writes as constants: `_send("x")`, `_delta("x")` and `{"type": "x"}`."""
    found = set[str]()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(func=ast.Attribute(attr="_send"), args=[ast.Constant(value=str(name)), *_]):
                found.add(name)
            case ast.Call(func=ast.Attribute(attr="_delta"), args=[ast.Constant(value=str(name)), *_]):
                found.add(f"{name}.delta")
            case ast.Call(
                func=ast.Attribute(attr="_send"), args=[ast.Dict(values=[ast.Constant(value=str(name)), *_])]
            ):
                found.add(name)
    return found


STREAMED = {"responses": (writer, RESPONSES), "messages": (stream, MESSAGES)}
"""Modules that write events, with the events that the page has."""
