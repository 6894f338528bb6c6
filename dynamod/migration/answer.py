"""The answer to one choice: what has come of it, and how each further piece is read. The hot path of the ingress."""

from array import array
from collections.abc import Callable
from time import perf_counter

import msgspec

from dynamod.actor import unseen
from dynamod.message import tokens
from dynamod.message.ingress import Delta, Items, Logprobs, Text, Tokens
from dynamod.message.worker import Generate, Request
from dynamod.observe.timeline import FIRST, SENT
from dynamod.router.placement import Placement

from .base import Choice


class Answer:
    """Turns ids into text and hands them to the choice's sink, in the call of the transport.

    `received`: tokens, characters or items so far; `base`: those before this attempt. `history`: ids of exact engines,
    after which another instance continues. `started_at`, `moved_at`: when the choice began, and when its last piece
    came, in seconds of `now`. `ended(told)` is called before the sink learns of the end, with whether the engine knows
    of it. `delta`, `bug`: those of the request.
    """

    __slots__ = (
        *("_bug", "_choice", "_delta", "_ended", "_index", "_now", "_output", "_pending", "_show", "_token"),
        *("base", "exact", "history", "moved_at", "over", "placement", "received", "started_at"),
    )

    def __init__(
        self,
        choice: Choice,
        now: Callable[[], float],
        delta: Callable[[Delta], None],
        ended: Callable[[bool], None],
        bug: Callable[[Exception], None],
    ) -> None:
        self._choice, self._index, self._output, self._token = choice, choice.index, choice.output, choice.output.token
        self._show, self._now, self._delta, self._ended, self._bug = choice.sink.text, now, delta, ended, bug
        self._pending: Logprobs | None = None
        self.exact, self.over, self.received, self.base = choice.exact, False, 0, 0
        self.history = array("i")
        self.placement: Placement
        self.started_at = self.moved_at = now()

    def close(self) -> None:
        """The request has ended: cut the circle of references, so that its memory is free at once."""
        self._delta = self._ended = self._bug = _nothing

    def begin(self, placement: Placement) -> None:
        """An attempt at another place begins."""
        self.placement, self.base, self._pending, self.moved_at = placement, self.received, None, self._now()
        self._choice.mark((SENT, self._index, perf_counter(), placement.instance))

    def continued(self, request: Request) -> Request:
        """The request to the next instance: it continues after what has come."""
        if isinstance(request, Generate) and self.history:
            return msgspec.structs.replace(request, prior_output=tokens.pack(self.history))
        return request

    @property
    def begun(self) -> bool:
        """Whether some of the answer has come from this attempt."""
        return self.received > self.base

    def token(self, offset: int, index: int) -> None:
        """Take one token of the current attempt after which the engine continues."""
        if self.over:
            return
        received = self.received
        if received == self.base:
            self._begins()
        if self.base + offset != received or self._pending is not None:
            self._delta(Tokens(0, offset, tokens.pack((index,))))
            return
        self.received = received + 1
        self.moved_at = self._now()
        if self.exact:
            self.history.append(index)
        output = self._output
        try:
            text = self._token(index)
            if output.finish is None:
                self._show(self._index, text, 1)
            else:
                self._emit(text, 1, None)
        except Exception as error:
            self._bug(error)

    def _begins(self) -> None:
        """The first piece of this attempt is here."""
        self._choice.mark((FIRST, self._index, perf_counter(), None))
        self.placement.prefill_completed()

    def take(self, delta: Delta) -> None:
        """Take one delta of the current attempt. Raises StreamGap."""
        if isinstance(delta, Tokens):
            self._tokens(delta)
        elif isinstance(delta, Text):
            self._text(delta)
        elif isinstance(delta, Items):
            self._items(delta)
        elif isinstance(delta, Logprobs):
            self._pending = delta

    def _count(self, offset: int, length: int) -> int:
        """A piece of the answer has come, in tokens, characters or items: how many of those are there already."""
        if self.received == self.base:
            self._begins()
        offset += self.base
        skip = unseen(self.received, offset, length) if offset != self.received else 0
        self.received += length - skip
        self.moved_at = self._now()
        return skip

    def _tokens(self, delta: Tokens) -> None:
        skip = self._count(delta.offset, len(delta.ids) >> 2)
        ids = tokens.unpack(delta.ids[skip * 4 :])
        if self.exact:
            self.history.extend(ids)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            if skip:
                pending = Logprobs(pending.stream, pending.offset, pending.chosen[skip:], pending.top[skip:])
            if self._choice.logprobs is not None and ids:
                self._choice.logprobs(self._index, pending, ids)
        before = self._output.completion_tokens
        text = self._output.push(ids, delta.finish) if ids else ""
        self._emit(text, self._output.completion_tokens - before, delta.finish)

    def _text(self, delta: Text) -> None:
        output, doubled = self._output, self.base + delta.offset != self.received
        text = delta.text[self._count(delta.offset, len(delta.text)) :]
        count = delta.tokens if text or not doubled else 0  # what came twice has been counted
        before = output.completion_tokens
        shown = output.push_text(text, count, delta.finish)
        self._emit(shown, output.completion_tokens - before, delta.finish, delta.prompt_tokens)

    def _items(self, delta: Items) -> None:
        skip = self._count(delta.offset, len(delta.items))
        for item in delta.items[skip:]:
            self._choice.sink.chunk(self._index, item)
        if delta.finish is not None:
            self._emit("", 0, delta.finish)

    def _emit(self, text: str, count: int, engine_finish: str | None, prompt_tokens: int | None = None) -> None:
        output = self._output
        finish = output.finish
        if finish is None and engine_finish is not None:
            text += output.end(engine_finish)
            finish = engine_finish
        if text or count:
            self._show(self._index, text, count)
        if finish is not None and not self.over:
            self._ended(engine_finish is not None)
            finish = "stop" if finish == "eos" else finish  # OpenAI's word
            self._choice.sink.finish(self._index, finish, output.completion_tokens, prompt_tokens)


def _nothing(_what: object) -> None:
    """For what comes after the end."""
