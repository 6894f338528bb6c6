"""Writers of responses: the items of an answer, in one piece or with the events of each.

Order: response.created, response.in_progress; per item response.output_item.added, its parts, its deltas, the whole of
it, response.output_item.done; at the end response.completed, response.incomplete or response.failed.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from aiohttp import HttpVersion, HttpVersion11, web

from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.http.stream import EventFrames
from dynamod.ingress.api.blocks import BlockStreamWriter, BlockWriter, Kind
from dynamod.ingress.api.details import token_logprobs
from dynamod.ingress.api.response import Choice
from dynamod.message.errors import RequestError
from dynamod.message.hints import printable

from .items import sealed
from .tools import ServedTool, input_of
from .values import (
    CustomToolCallItem,
    FunctionCallItem,
    IncompleteDetails,
    InputDetails,
    Item,
    OutputDetails,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseError,
    ResponseObject,
    ResponsesUsage,
    Status,
    SummaryText,
    new_item,
)

KEEP_WAIT = 5.0
"""Seconds that the end of an answer waits until the response is kept; after these it ends unkept."""
Keep = Callable[[ResponseObject], Future[None] | None]
"""Keeps a complete response. What it returns ends when that is done; None: it is done already."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_encode = msgspec.json.Encoder().encode


class ResponseItemsWriter(BlockWriter):
    """Fills a response. `done` gets it when it is complete, and the answer ends when it is kept.

    `sealed`: reasoning comes in `encrypted_content`, too. `summary`: reasoning comes in `summary`, not in `content`.
    `tools`: of the client, by the names that the model knows.
    """

    sealed = False
    summary = False
    tools: Mapping[str, ServedTool] = MappingProxyType({})

    def __init__(self, response: ResponseObject, begun: float, meter: ModelMetrics, done: Keep) -> None:
        super().__init__(meter, begun)
        self.response = response
        self.response.output = []
        self._done = done
        self._keeping = False  # the response is complete, and not kept yet
        self._texts: list[str] = []  # of the open item
        self._token_scores: list[dict[str, Any]] = []  # log probabilities of its text
        self._status: Status = "completed"  # of an item that ends

    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """An item begins."""
        self.response.output.append(new_item(kind, name, call_id, self.tools))

    @property
    def item(self) -> Item:
        """The newest item."""
        return self.response.output[-1]

    def more(self, text: str) -> None:
        """Keep it."""
        self._texts.append(text)
        self._scores()

    def _scores(self) -> list[dict[str, Any]]:
        """The log probabilities that have come with the newest text; reasoning and calls have none."""
        entries = self.choices[0].entries
        if not entries:
            return []
        found = [token_logprobs(entry) for entry in entries] if self.kind == "text" else []
        entries.clear()
        self._token_scores += found
        return found

    def ended(self) -> None:
        """The item is as it stays."""
        text, item = printable("".join(self._texts)), self.item
        self._texts.clear()
        item.status = self._status
        match item:
            case OutputMessage():
                item.content = [OutputText(text, logprobs=self._token_scores)]
                self._token_scores = []
            case ReasoningItem():
                if self.summary:
                    item.summary = [SummaryText(text)]
                else:
                    item.content = [ReasoningText(text)]
                item.encrypted_content = sealed(text) if self.sealed else None
            case FunctionCallItem():
                item.arguments = text or "{}"
            case CustomToolCallItem():
                item.input = input_of(text)

    def _finished(self, choice: Choice) -> None:
        why = _INCOMPLETE.get(choice.reason or "")
        if why is not None:
            self._status = "incomplete"
            self.response.incomplete_details = IncompleteDetails(why)
        self._close()
        response, usage = self.response, self.usage(self.completion_tokens)
        response.status = self._status
        response.completed_at = None if why is not None else int(time.time())
        response.usage = ResponsesUsage(
            *(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
            OutputDetails(min(self.details.reasoning_tokens or 0, usage.completion_tokens)),
            InputDetails(self.cached_tokens or 0),
        )
        kept = self._done(response)
        if kept is None:
            self._completed()
            return
        self._keeping = True
        loop = asyncio.get_running_loop()
        clock = loop.call_later(KEEP_WAIT, self._kept)

        def done(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(partial(self._kept, clock))

        kept.add_done_callback(done)

    def _kept(self, clock: asyncio.TimerHandle | None = None) -> None:
        if clock is not None:
            clock.cancel()
        if self._keeping:
            self._keeping = False
            if self.open:
                self._completed()
                self.close()

    def _completed(self) -> None:
        """The response is complete and kept."""

    def close(self) -> None:
        """As of all writers, and not before the response is kept: a client that has it can read it again."""
        if not self._keeping or self.error is not None:
            super().close()


class ResponseUnaryWriter(ResponseItemsWriter):
    """A response in one piece."""

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.Response:
        """Wait for the end and send it."""
        return await self.in_one_piece(lambda: self.response, headers)


class ResponseStreamWriter(BlockStreamWriter, ResponseItemsWriter):
    """The events of a response."""

    def __init__(
        self,
        response: ResponseObject,
        begun: float,
        meter: ModelMetrics,
        done: Keep,
        settings: FrontendSettings,
        version: HttpVersion = HttpVersion11,
    ) -> None:
        self._frames = EventFrames(version >= HttpVersion11)
        super().__init__(*(response, begun, meter, done), frames=self._frames, keep_alive=settings.keep_alive)
        self._number = 0  # of the next event
        self._prefix = b""  # of the open item's deltas
        self._unsent: list[dict[str, Any]] = []  # log probabilities of the text that waits

    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """An item begins, and the response with the first."""
        self._begin()
        super().opened(kind, name, call_id)
        item = self.item
        self._send("output_item.added", output_index=self._place, item=item)
        match item:
            case OutputMessage():
                self._prefix = self._delta("output_text", content_index=0, logprobs=[])
                self._part_event("added", OutputText())
            case ReasoningItem() if self.summary:
                self._prefix = self._delta("reasoning_summary_text", summary_index=0)
                self._part_event("added", SummaryText())
            case ReasoningItem():
                self._prefix = self._delta("reasoning_text", content_index=0)
                self._part_event("added", ReasoningText())
            case FunctionCallItem():
                self._prefix = self._delta("function_call_arguments")

    def more(self, text: str) -> None:
        """Text of the open item, with what has come for it."""
        self._unsent += self._scores()
        super().more(text)

    def delta(self, text: str) -> bytes:
        """A piece of the open item: the hot path. The input of a custom tool comes when it is complete."""
        self._texts.append(text)
        if isinstance(self.item, CustomToolCallItem):
            return b""
        found, self._unsent = self._scores() if self._direct else self._unsent, []
        if found:
            place = {"item_id": self.item.id, "output_index": self._place, "content_index": 0}
            return self._event("output_text.delta", **place, delta=printable(text), logprobs=found)
        try:
            content = _encode(text)
        except UnicodeEncodeError:
            content = _encode(printable(text))
        number, self._number = self._number, self._number + 1
        return self._frames.frame(b'%b%b,"sequence_number":%d}\n\n' % (self._prefix, content, number))

    def ended(self) -> None:
        """The item is as it stays."""
        BlockStreamWriter.ended(self)
        ResponseItemsWriter.ended(self)
        item, place = self.item, {"item_id": self.item.id, "output_index": self._place}
        match item:
            case OutputMessage():
                self._send(
                    "output_text.done",
                    **place,
                    content_index=0,
                    text=item.content[0].text,
                    logprobs=item.content[0].logprobs,
                )
                self._part_event("done", item.content[0])
            case ReasoningItem() if self.summary:
                self._send("reasoning_summary_text.done", **place, summary_index=0, text=item.summary[0].text)
                self._part_event("done", item.summary[0])
            case ReasoningItem():
                self._send("reasoning_text.done", **place, content_index=0, text=item.content[0].text)
                self._part_event("done", item.content[0])
            case FunctionCallItem():
                self._send("function_call_arguments.done", **place, name=item.name, arguments=item.arguments)
            case CustomToolCallItem():
                self._send("custom_tool_call_input.delta", **place, delta=item.input)
                self._send("custom_tool_call_input.done", **place, input=item.input)
        self._send("output_item.done", output_index=self._place, item=item)

    def fail_event(self, error: RequestError) -> None:
        """The stream ends here."""
        self.response.status = "failed"
        self.response.error = ResponseError(error.code or error.kind, printable(str(error)))
        self._send("failed", response=self.response)

    @property
    def _place(self) -> int:
        return self.blocks - 1

    def _delta(self, name: str, **fields: Any) -> bytes:
        name = f"response.{name}.delta"
        value = {"type": name, "item_id": self.item.id, "output_index": self._place, **fields, "delta": ""}
        return b"event: %b\ndata: %b" % (name.encode(), _encode(value).removesuffix(b'""}'))

    def _part_event(self, what: str, part: OutputText | ReasoningText | SummaryText) -> None:
        kind, index = ("content_part", "content_index")
        if isinstance(part, SummaryText):
            kind, index = ("reasoning_summary_part", "summary_index")
        self._send(f"{kind}.{what}", item_id=self.item.id, output_index=self._place, **{index: 0}, part=part)

    def _begin(self) -> None:
        if not self._number:
            self._send("created", response=self.response)
            self._send("in_progress", response=self.response)

    def _send(self, name: str, /, **fields: Any) -> None:
        self._ready.append(self._event(name, **fields))

    def _event(self, name: str, /, **fields: Any) -> bytes:
        value = {"type": f"response.{name}", **fields, "sequence_number": self._number}
        self._number += 1
        return self._frames.event(f"response.{name}", _encode(value))

    def _finished(self, choice: Choice) -> None:
        self._begin()
        super()._finished(choice)

    def _completed(self) -> None:
        """The last event."""
        self._send(self.response.status, response=self.response)
        self.events.push(self)
