"""What writers of answers share that consist of blocks: text, reasoning and calls of tools, in order."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from aiohttp import web

from dynamod.http.stream import EventFrames, EventStream
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.openai import REASONING_NAMES

from .response import Choice, ResponseWriter

Kind = Literal["text", "thinking", "tool_use"]
_input = msgspec.json.Decoder(dict[str, Any])


class BlockWriter(ResponseWriter):
    """Opens, continues and closes blocks as the answer says it."""

    kind: Kind | None = None  # of the open block
    blocks = 0  # that have been opened
    _call = -1  # the engine's number of the call that is open

    @abstractmethod
    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """A block begins. `name`, `call_id`: of a call; an engine may give no id."""

    @abstractmethod
    def more(self, text: str) -> None:
        """Text of the open block; of a call the JSON of its input."""

    @abstractmethod
    def ended(self) -> None:
        """The open block is complete."""

    def text(self, index: int, text: str, tokens: int) -> None:
        """Text of the answer."""
        if self.open:
            self.tick(self.choices[index], tokens)
            if text:
                self.add("text", text)

    def add(self, kind: Literal["text", "thinking"], text: str) -> None:
        """Text of a block of this kind."""
        if self.kind != kind:
            self._open(kind)
        self.more(text)

    def _open(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        self._close()
        self.kind, self._call = kind, -1
        self.blocks += 1
        self.opened(kind, name, call_id)

    def _close(self) -> None:
        if self.kind is not None:
            self.ended()
            self.kind = None

    def _part(self, choice: Choice, part: Mapping[str, Any]) -> None:
        delta = part.get("delta") or {}
        if thought := next((value for name in REASONING_NAMES if (value := delta.get(name))), None):
            self.add("thinking", thought + "")  # TypeError for what is no text
        if content := part.get("text", delta.get("content")) or delta.get("refusal"):
            self.add("text", content + "")
        for call in delta.get("tool_calls") or ():
            self._piece(call)

    def _piece(self, piece: Mapping[str, Any]) -> None:
        """A piece of a call: its number, id and name come once, its arguments in pieces."""
        function, place = piece.get("function") or {}, piece.get("index")
        name, arguments = function.get("name"), function.get("arguments")
        if self.kind != "tool_use" or (place != self._call if place is not None else name):
            if not name:
                raise ValueError("a call of a tool without a name")
            self._open("tool_use", name + "", (piece.get("id") or "") + "")
            self._call = cast("int", self.blocks if place is None else place)
        if arguments:
            self.more(arguments + "")

    def call_object(self, text: str) -> dict[str, Any]:
        """The input of a call. Our parsers give objects; what a text engine says may be anything.

        Of a call that the limit has cut off: the members that are complete, as Anthropic's clients read a stream.
        """
        try:
            if self.choices[0].reason == "length":
                from pydantic_core import from_json  # takes 0.02 to 0.05 s, and few answers end so

                partial = from_json(text or "{}", allow_partial=True)
                return partial if isinstance(partial, dict) else {}
            return _input.decode(text) if text else {}
        except (msgspec.DecodeError, RecursionError, ValueError):
            self.fail(EngineFailed("the engine has called a tool with what is no JSON object"))
            return {}

    def _finished(self, choice: Choice) -> None:
        self._close()


class BlockStreamWriter(BlockWriter):
    """Sends each piece of a block as an event, in the same call unless the client is slow: then its text piles up."""

    def __init__(self, *arguments: Any, frames: EventFrames, keep_alive: float, idle: float = 0.0) -> None:
        super().__init__(*arguments)
        self.events = EventStream(frames)
        self._clocks = keep_alive, idle
        self._ready: list[bytes] = []
        self._held: list[str] = []  # text of the open block
        self._direct = False  # its text may go straight to the socket: nothing is held

    @abstractmethod
    def delta(self, text: str) -> bytes:
        """The event of a piece of the open block: the hot path."""

    def text(self, index: int, text: str, tokens: int) -> None:
        """The hot path: one event, one write."""
        if not self.open:
            return
        self.tick(self.choices[index], tokens)
        if not text:
            return
        if self._direct:
            outlet = self.events.outlet
            if outlet.free or outlet.ready():  # type: ignore[union-attr]
                outlet.put(self.delta(text))  # type: ignore[union-attr]
                return
            self._direct = False
        self.add("text", text)
        self.events.push(self)

    def chunk(self, index: int, chunk: Any) -> None:
        """Reasoning, calls, and what a text engine says."""
        super().chunk(index, chunk)
        if self.open and self.pending(self.events.committed):
            self.events.push(self)

    def more(self, text: str) -> None:
        """Text of the open block."""
        self._direct = False
        self._held.append(text)

    def ended(self) -> None:
        """The open block is complete."""
        self._seal()
        self._direct = False

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Send the events as they are made."""
        return await self.events.serve(self, request, headers, *self._clocks)

    def pending(self, committed: bool) -> bool:
        """Whether there is something to send."""
        return bool(self._ready or self._held)

    def take(self) -> bytes:
        """Everything that is ready, with the text of the open block as one event."""
        self._seal()
        self._direct = self.events.outlet is not None and self.kind == "text"
        data = b"".join(self._ready)
        self._ready.clear()
        return data

    def last(self) -> float:
        """When the newest tokens came."""
        return max((choice.last for choice in self.choices), default=0.0)

    def _seal(self) -> None:
        if self._held:
            self._ready.append(self.delta("".join(self._held)))
            self._held.clear()

    def _failed(self, error: RequestError) -> None:
        """The answer ends with an error; before the first byte that is a status."""
        self._direct = False
        if not self.events.committed:
            self._ready.clear()
            self._held.clear()
            return
        self._seal()
        self.fail_event(error)
        self.events.push(self)

    @abstractmethod
    def fail_event(self, error: RequestError) -> None:
        """Make the last events of an answer that has failed."""
