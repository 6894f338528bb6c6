"""Events of tools: harnesses of agents push them to a ZMQ socket, as to NVIDIA Dynamo.

A message has three frames: topic, number (8 bytes), and the event in msgpack.
"""

import asyncio
import importlib.util
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from dynamod.message.errors import UserError
from dynamod.message.install import extra_hint

from .rows import LONGEST, SCHEMA, AgentContext

log = logging.getLogger("dynamod.frontend")

FRAMES = 3
LARGEST = 64 * 1024
"""Bytes of one event."""
WAITING = 1000
"""Events that the socket holds for each harness; ZMQ makes the harness wait above that."""
AGAIN_S = 5.0
"""Seconds until a place that another process has is tried again."""
SAY_S = 60.0
"""Seconds between two lines about events that are wrong."""

STATUSES = ("running", "succeeded", "error", "cancelled")
_OTHER = {
    **dict.fromkeys(("ok", "success"), "succeeded"),
    "failed": "error",
    **dict.fromkeys(("canceled", "timeout"), "cancelled"),
}
"""Other words for these."""
_EVENTS = Literal["tool_start", "tool_end", "tool_error"]


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool, without arguments and results."""

    tool_call_id: str
    tool_class: str
    started_at_unix_ms: int | None = None
    ended_at_unix_ms: int | None = None
    status: str | None = None
    duration_ms: float | None = None
    output_tokens: int | None = None
    output_bytes: int | None = None
    tool_name_hash: str | None = None
    error_type: str | None = None


class ToolRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row."""

    schema: str
    event_type: _EVENTS
    event_time_unix_ms: int
    event_source: str
    agent_context: AgentContext
    tool: Tool


class _Event(msgspec.Struct, frozen=True):
    """What a harness sends. The session stands in `agent_context`, or in the event itself."""

    schema: str
    event_type: _EVENTS
    event_time_unix_ms: int
    tool: Tool
    agent_context: AgentContext | None = None
    session_id: str = ""
    parent_session_id: str | None = None


_decode = msgspec.msgpack.Decoder(_Event).decode
_encode = msgspec.json.Encoder().encode


def tool_row(frames: Sequence[bytes], topic: str = "") -> bytes | None:
    """The row of a message; None: its topic is another one. Raises ValueError for what is no event of a tool."""
    if len(frames) != FRAMES:
        raise ValueError(f"{len(frames)} frames; topic, number and event are {FRAMES}")
    if topic and frames[0] != topic.encode():
        return None
    if len(frames[2]) > LARGEST:
        raise ValueError(f"{len(frames[2])} bytes; at most {LARGEST}")
    try:
        event = _decode(frames[2])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if event.schema != SCHEMA:
        raise ValueError(f"its schema is {event.schema[:60]!r}, not {SCHEMA!r}")
    agent = event.agent_context or AgentContext(event.session_id, event.parent_session_id or "")
    names = (agent.session_id, agent.trajectory_id)
    if not any(names) or any(len(name.encode(errors="replace")) > LONGEST for name in names):
        raise ValueError(f"session_id: give one of at most {LONGEST} bytes")
    tool = event.tool
    if not tool.tool_call_id or not tool.tool_class:
        raise ValueError("tool_call_id and tool_class must not be empty")
    status = _OTHER.get(tool.status or "", tool.status)
    if status is not None and status not in STATUSES:
        raise ValueError(f"tool.status is {status[:40]!r}; known: {', '.join(STATUSES)}")
    row = ToolRow(
        event.schema,
        event.event_type,
        event.event_time_unix_ms,
        "harness",
        agent,
        msgspec.structs.replace(tool, status=status),
    )
    return _encode(row) + b"\n"


class ToolEvents:
    """Listens at a place, like `tcp://127.0.0.1:20390`, and gives rows to `put`. Raises UserError without ZMQ.

    `taken`, `refused`: events; a refused one is wrong, or of another topic.
    """

    def __init__(self, place: str, topic: str, put: Callable[[bytes], None]) -> None:
        if importlib.util.find_spec("zmq") is None:
            what = "request_trace_tool_events_zmq_endpoint: the package pyzmq is not installed"
            raise UserError(what, f"{extra_hint('trace')}; or leave the endpoint out")
        self._place, self._topic, self._put = place, topic, put
        self.taken = self.refused = 0
        self._next_word = 0.0

    async def run(self) -> None:
        """Take events until it is cancelled. One process of several at one place does."""
        zmq = await asyncio.to_thread(importlib.import_module, "zmq.asyncio")
        context = zmq.Context()
        socket = context.socket(importlib.import_module("zmq").PULL)
        try:
            socket.linger = 0
            socket.rcvhwm = WAITING
            await self._bound(socket)
            while True:
                self.take(await socket.recv_multipart())
        finally:
            socket.close(0)
            context.destroy(0)

    async def _bound(self, socket: Any) -> None:
        """Listen as soon as the place is free."""
        told = False
        while True:
            try:
                socket.bind(self._place)
            except OSError as error:
                if not told:
                    text = "request trace: no events of tools at %s: %s; another process may take them"
                    log.warning(text, self._place, error.strerror or error)
                told = True
                await asyncio.sleep(AGAIN_S)
            else:
                log.info("request trace: events of tools at %s", self._place)
                return

    def take(self, frames: Sequence[bytes]) -> None:
        """One message."""
        try:
            row = tool_row(frames, self._topic)
        except ValueError as error:
            self.refused += 1
            now = asyncio.get_running_loop().time()
            if now >= self._next_word:
                self._next_word = now + SAY_S
                log.warning("request trace: an event of a tool is left out: %s; so far %d", error, self.refused)
            return
        if row is None:
            self.refused += 1
            return
        self.taken += 1
        self._put(row)
