"""A flight: one choice of a request on its way through an instance, and through another when that one fails.

It is the sink of the request's stream, so `delta` is the hot path of the ingress: called once per engine step and
stream, it turns ids into text and hands it to the outlet in the same call.
"""

import logging
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from dynamod.actor import StreamGap, unseen
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import REQUEST_ERRORS, EngineFailed, RequestError
from dynamod.message.ingress import Accepted, Delta, Failed, Items, Logprobs, Text, Tokens
from dynamod.message.worker import Chat, Generate
from dynamod.transport.base import Outbound, Transport

from .decision import Broken, decide

log = logging.getLogger("dynamod.migration")


class TokenOutput(Protocol):
    """What turns ids into text (preprocess.output.Output)."""

    finish: str | None
    completion_tokens: int

    def push(self, ids: Sequence[int], engine_finish: str | None = None) -> str:
        """Text for new ids; sets `finish` when the answer is over. `engine_finish`: these are the engine's last."""
        ...

    def token(self, index: int) -> str:
        """`push` of one id behind which the engine goes on."""
        ...

    def end(self, finish: str) -> str:
        """The engine is done: what was held back."""
        ...


class TextOutput(Protocol):
    """What checks text of a text engine (preprocess.output.TextOutput)."""

    finish: str | None
    completion_tokens: int

    def push_text(self, text: str, tokens: int = 0, engine_finish: str | None = None) -> str:
        """Text to show for new text. `engine_finish`: it is the engine's last."""
        ...

    def end(self, finish: str) -> str:
        """The engine is done: what was held back."""
        ...


class Listener(Protocol):
    """Where the flight's answer goes: the part of ingress.base.ResponseSink for one choice."""

    def text(self, index: int, text: str, tokens: int) -> None:
        """New text."""

    def chunk(self, index: int, chunk: Any) -> None:
        """A chunk the engine made itself."""

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """The choice is complete."""

    def fail(self, error: RequestError) -> None:
        """The choice ends with an error."""


class Route(Protocol):
    """Chooses instances for one flight and keeps the account of their load (frontend.dispatch)."""

    def pick(self, tried: Collection[int]) -> Instance | None:
        """An instance that is ready and not among those tried, charged with the request; None when there is none."""
        ...

    def others(self, tried: Collection[int]) -> bool:
        """Whether `pick` would find one."""
        ...

    def computed(self) -> None:
        """The picked instance has sent its first token."""

    def end(self) -> None:
        """The picked instance has no more to do with the request. Called again, it does nothing."""

    def wait(self, inflight: "InFlightRequest") -> bool:
        """All others are busy: call `flight.send` when one is not. False when that cannot be."""
        ...


class MigrationCounts(Protocol):
    """Counts moves to other instances (frontend.metrics.MigrationCounts)."""

    def broke(self, ongoing: bool) -> None:
        """A request is sent again; `ongoing`: part of its answer had come."""

    def too_long(self) -> None:
        """An answer could not move because of its length."""

    def settled(self, seconds: float, ok: bool) -> None:
        """Another instance has taken it (or none has) that long after the stream broke."""


class _Uncounted:
    def broke(self, ongoing: bool) -> None: ...

    def too_long(self) -> None: ...

    def settled(self, seconds: float, ok: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: until an instance accepts, until the first token, between tokens, for all. None: no limit."""

    queue: float | None = 30.0
    first: float | None = 600.0
    gap: float | None = 120.0
    total: float | None = None


class InFlightRequest:
    """One choice. `landed(flight)` is called once when it is over, whatever way.

    `longest`: tokens of prompt and answer above which an answer is not continued elsewhere; None: there is no bound.
    """

    def __init__(
        self,
        request: Generate | Chat,
        output: TokenOutput | TextOutput,
        listener: Listener,
        index: int,
        *,
        transport: Transport,
        route: Route,
        exact: bool,
        limit: int,
        now: Callable[[], float],
        completed: Callable[["InFlightRequest"], None],
        logprobs: Callable[[int, Logprobs, Sequence[int]], None] | None = None,
        migrations: MigrationCounts = _Uncounted(),
        longest: int | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.over = False
        self.instance: Instance | None = None
        self._output = output
        self._listener = listener
        self._transport, self._route = transport, route
        self._exact, self._limit, self._longest = exact, limit, longest
        self._now, self._completed = now, completed
        self._logprobs = logprobs
        self._migrations = migrations
        self._broke_at: float | None = None  # until another instance has taken the request
        self._pending_logprobs: Logprobs | None = None
        self._tried: set[int] = set()
        self._sends = 0
        self._base = 0  # received before the current send
        self._received = 0  # tokens, characters or items of the answer so far
        self._history = array("i")  # ids received, for another instance to continue behind
        self._outbound: Outbound | None = None
        self.started_at = self.moved_at = now()
        self.accepted = False
        text_engine = not isinstance(request, Generate)
        self._push: Any = output.push_text if text_engine else output.push  # type: ignore[union-attr]
        self._token: Any = None if text_engine else output.token  # type: ignore[union-attr]
        self._tell = listener.text

    def send(self) -> bool:
        """Send the request to an instance. False when none is ready; the flight is then still on the ground."""
        instance = self._route.pick(self._tried)
        if instance is None:
            return False
        self._tried.add(instance.instance_id)
        self._sends += 1
        self.instance = instance
        self.accepted = False
        self.moved_at = self._now()
        self._base = self._received
        self._pending_logprobs = None
        request = self.request
        if self._history and isinstance(request, Generate):
            request = msgspec.structs.replace(request, prior_output=tokens.pack(self._history))
        number = self._sends
        outbound = self._transport.open(instance, request, _Attempt(self, number))
        if not self.over and self._sends == number:  # a post inside the process may have refused it, and we moved on
            self._outbound = outbound
        return True

    def cancel(self) -> None:
        """The client has left: free the slot, say nothing more."""
        if not self.over:
            self._land(notify_engine=True)

    def leave(self, why: str) -> None:
        """The instance cannot be waited for: go on elsewhere, or end with an error."""
        if not self.over:
            self._break(why, retry=False)

    def expire(self, limits: Limits) -> None:
        """Check the request's clocks; the stream breaks (and may move) when one has passed."""
        now = self._now()
        waited = now - self.moved_at
        if limits.total is not None and now - self.started_at > limits.total:
            self._fail(REQUEST_ERRORS["TimedOut"](f"the request took longer than {limits.total:g} s in total"))
        elif self._received > self._base:
            if limits.gap is not None and waited > limits.gap:
                self._break(f"the answer paused for more than {limits.gap:g} s", retry=False)
        elif self.accepted:  # also behind a move: the next instance has the whole prompt before it
            if limits.first is not None and waited > limits.first:
                self._break(f"no token came within {limits.first:g} s", retry=False)
        elif limits.queue is not None and waited > limits.queue:
            why = f"no instance took the request within {limits.queue:g} s"
            if self.instance is None:  # it is not with any: all are busy
                self._fail(REQUEST_ERRORS["Overloaded"](f"{why}: all are busy", retry_after=1.0))
            else:
                self._break(why, retry=True)

    # Called by the leg.

    def token(self, offset: int, index: int) -> None:
        """Take one token of the current leg behind which the engine goes on: the hot path of the ingress."""
        if self.over:
            return
        received = self._received
        if received == self._base:
            self._route.computed()
        if self._base + offset != received or self._pending_logprobs is not None or self._token is None:
            self.delta(Tokens(0, offset, tokens.pack((index,))))
            return
        self._received = received + 1
        self.moved_at = self._now()
        if self._exact:
            self._history.append(index)
        output = self._output
        try:
            text = self._token(index)
            if output.finish is None:
                self._tell(self.index, text, 1)
            else:
                self._emit(text, 1, None, None)
        except Exception as error:
            self._bug(error)

    def delta(self, delta: Delta) -> None:
        """Take one delta of the current leg."""
        try:
            kind = type(delta)
            if kind is Tokens:
                self._tokens(delta)  # type: ignore[arg-type]
            elif kind is Accepted:
                self.accepted = True
                self.moved_at = self._now()
                if self._broke_at is not None:
                    self._settled(True)
            elif kind is Text:
                self._text(delta)  # type: ignore[arg-type]
            elif kind is Items:
                self._items(delta)  # type: ignore[arg-type]
            elif kind is Logprobs:
                self._pending_logprobs = delta  # type: ignore[assignment]
            elif kind is Failed:
                self._failed(delta)  # type: ignore[arg-type]
        except StreamGap as error:
            self._break(f"the stream lost frames ({error})", retry=False)
        except Exception as error:
            self._bug(error)

    def _bug(self, error: Exception) -> None:
        """An error of ours or the tokenizer's ends this request, not its neighbours."""
        log.exception("request %s failed while its answer was read", self.request.request_id)
        self._fail(EngineFailed(f"internal error while reading the answer: {type(error).__name__}"))

    def _tokens(self, delta: Tokens) -> None:
        if self._received == self._base:
            self._route.computed()
        packed, count, skip = delta.ids, len(delta.ids) >> 2, 0
        offset = self._base + delta.offset
        if offset != self._received:
            skip = unseen(self._received, offset, count)
            packed, count = packed[skip * 4 :], count - skip
        self._received += count
        self.moved_at = self._now()
        ids = tokens.unpack(packed)
        if self._exact:
            self._history.extend(ids)
        if self._pending_logprobs is not None:
            pending, self._pending_logprobs = self._pending_logprobs, None
            if skip:
                pending = Logprobs(pending.stream, pending.offset, pending.chosen[skip:], pending.top[skip:])
            if self._logprobs is not None and count:
                self._logprobs(self.index, pending, ids)
        before = self._output.completion_tokens
        text = self._push(ids, delta.finish) if count else ""
        self._emit(text, self._output.completion_tokens - before, delta.finish, None)

    def _text(self, delta: Text) -> None:
        if self._received == self._base:
            self._route.computed()
        offset = self._base + delta.offset
        text, count = delta.text, delta.tokens
        if offset != self._received:
            text = text[unseen(self._received, offset, len(text)) :]
            count = count if text else 0  # a doubled delta has been counted
        self._received += len(text)
        self.moved_at = self._now()
        before = self._output.completion_tokens
        shown = self._push(text, count, delta.finish)
        self._emit(shown, self._output.completion_tokens - before, delta.finish, delta.prompt_tokens)

    def _items(self, delta: Items) -> None:
        if self._received == self._base:
            self._route.computed()
        skip = unseen(self._received, self._base + delta.offset, len(delta.items))
        self._received += len(delta.items) - skip
        self.moved_at = self._now()
        for item in delta.items[skip:]:
            self._listener.chunk(self.index, item)
        if delta.finish is not None:
            self._emit("", 0, delta.finish, None)

    def _emit(self, text: str, count: int, engine_finish: str | None, prompt_tokens: int | None) -> None:
        output = self._output
        finish = output.finish
        if finish is None and engine_finish is not None:
            text += output.end(engine_finish)
            finish = engine_finish
        if text or count:
            self._listener.text(self.index, text, count)
        if finish is not None and not self.over:
            self._land(notify_engine=engine_finish is None)
            self._listener.finish(self.index, _openai(finish), output.completion_tokens, prompt_tokens)

    def _failed(self, delta: Failed) -> None:
        if delta.retry:
            self._outbound = None
            self._break(delta.message, retry=True)
        else:
            self._outbound = None
            self._fail(delta.exception())

    def _break(self, why: str, *, retry: bool) -> None:
        outbound, self._outbound = self._outbound, None
        if outbound is not None:
            outbound.cancel()
        self._route.end()
        long, others = self._too_long(), self._route.others(self._tried)
        verdict = decide(Broken(why, retry, self._received, self._exact, self._sends, self._limit, others, long))
        if long and self._received:
            self._migrations.too_long()
        if verdict.again:
            if self._broke_at is None:
                self._broke_at = self._now()
            self._migrations.broke(self._received > 0)
            log.warning("request %s moves to another instance: %s", self.request.request_id, why)
            if self.send():
                return
            self.instance, self.accepted, self.moved_at = None, False, self._now()
            if self._route.wait(self):
                return
        error = REQUEST_ERRORS[verdict.error or "Overloaded"](verdict.message or why)
        if isinstance(error, REQUEST_ERRORS["Overloaded"]):
            error.retry_after = 1.0
        self._fail(error)

    def _too_long(self) -> bool:
        request = self.request
        if self._longest is None or not isinstance(request, Generate):
            return False
        return tokens.count(request.token_ids) + self._received > self._longest

    def _fail(self, error: RequestError) -> None:
        if not self.over:
            self._land(notify_engine=True)
            self._listener.fail(error)

    def _settled(self, ok: bool) -> None:
        assert self._broke_at is not None
        seconds, self._broke_at = self._now() - self._broke_at, None
        self._migrations.settled(seconds, ok)
        if ok and self.instance is not None:
            where = self.instance.process or f"{self.instance.instance_id:x}"
            log.info("request %s was taken by %s within %.1f ms", self.request.request_id, where, seconds * 1000)

    def _land(self, *, notify_engine: bool) -> None:
        self.over = True
        if self._broke_at is not None:
            self._settled(False)
        outbound, self._outbound = self._outbound, None
        if outbound is not None and notify_engine:
            outbound.cancel()
        self._route.end()
        self._completed(self)


class _Attempt:
    """The sink of one send: what an instance says after the request has moved on is not heard."""

    __slots__ = ("_number", "_request", "token")

    def __init__(self, inflight: InFlightRequest, number: int) -> None:
        self._request, self._number = inflight, number
        self.token: Callable[[int, int], None] = (
            inflight.token
        )  # without a look at the number: posts say nothing more once a send is cancelled

    def delta(self, delta: Delta) -> None:
        inflight = self._request
        if not inflight.over and inflight._sends == self._number:
            inflight.delta(delta)

    def lost(self, why: str) -> None:
        inflight = self._request
        if not inflight.over and inflight._sends == self._number:
            inflight._outbound = None
            inflight._break(why, retry=False)


def _openai(finish: str) -> str:
    return "stop" if finish in ("eos", "stop") else finish
