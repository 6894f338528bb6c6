"""One choice of a request on its way through an instance, and through another when that one fails.

`run` is its life: acquire a place, open an attempt there, wait for the end of it, decide, again or finish. What the
instance sends meanwhile does not pass through that coroutine: the request is the sink of its stream, so `token` and
`delta` are the hot path of the ingress. They are called once per engine step and stream, turn ids into text and hand
it to the sink of the response in the same call.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from dynamod.actor import StreamGap, unseen
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import REQUEST_ERRORS, EngineFailed, Overloaded, RequestError
from dynamod.message.ingress import Accepted, Delta, Failed, Items, Logprobs, Text, Tokens
from dynamod.message.worker import HANDOFF_FAILED, LEAVING, PASSED, TRIAL_TAKEN, Chat, Embed, Generate, Request
from dynamod.router.placement import Placement
from dynamod.transport.base import Transport

from .attempt import Attempt, Break
from .base import AcquirePlace, ChoiceSink, Limits, MigrationCounts, Output, Suspicions
from .decision import Broken, Verdict, decide
from .prompt import PrefillWorkerLost, RemotePrefill, RemotePrompt, TakeLogprobs, prompt_taker
from .trial import CAUSE, PASS_LOOK, PASSED_AFTER, TRIAL_PAUSE, Trial
from .tried import Tried

log = logging.getLogger("dynamod.migration")


class InFlightRequest:
    """One choice. `completed(request)` is called once when it is over, whatever way.

    Of `request`, any kind that the engine takes, its `request_id` is read, and of exact engines `prior_output` is set.
    `available(tried, received)` says whether an instance that was not tried can go on behind what came. `exact`: the
    engine continues behind given tokens exactly. `limit`: migrations; `longest`: tokens of prompt and answer above
    which an answer is not continued elsewhere. `suspect`: it is tried alone from the beginning. `needs_prefill`: the
    engine computes no prompts, so `prefill` always has it done. `neighbours`: see `Tried.link_lost`.
    """

    def __init__(
        self,
        request: Request,
        output: Output,
        sink: ChoiceSink,
        index: int,
        *,
        transport: Transport,
        acquire: AcquirePlace,
        available: Callable[[Collection[int], int], bool],
        neighbours: Callable[[Instance], Collection[int]] = lambda _: (),
        suspicions: Suspicions,
        exact: bool,
        limit: int,
        now: Callable[[], float],
        completed: Callable[["InFlightRequest"], None],
        migrations: MigrationCounts,
        logprobs: TakeLogprobs | None = None,
        prompt_tokens: int = 0,
        longest: int | None = None,
        suspect: bool = False,
        prefill: RemotePrefill | None = None,
        needs_prefill: bool = False,
    ) -> None:
        self.request, self.index, self.over = request, index, False
        self.instance: Instance | None = None  # where it is; None while it has no place
        self._output, self._token, self._sink, self._show = output, output.token, sink, sink.text
        self._transport, self._acquire, self._available, self._neighbours = transport, acquire, available, neighbours
        self._exact, self._limit, self._form = exact, limit, getattr(request, "grammar", None) is not None
        self._trial, self._sent = Trial(suspicions, request, suspect), False
        self._prefill, self._needs_prefill, self._left = prefill, needs_prefill, ""
        self._prompt_tokens, self._longest = prompt_tokens, longest
        self._now, self._completed, self._logprobs, self._migrations = now, completed, logprobs, migrations
        self._tried = Tried()
        self._sends = 0
        self.displaced = 0  # how often it has left for the trial of another, which is no failure
        self.refused = 0  # how often an instance ended before it began with it, which is none either
        self.made_room: set[int] = set()  # instances that it has left for the trial of another; it may come back
        self._broke_at: float | None = None  # until another instance has taken the request
        self._broke_why = ""  # until it is sent to another instance
        self._received = self._base = 0  # tokens, characters or items of the answer: so far, and before this attempt
        self._history = array("i")  # ids received, for another instance to continue behind
        self._pending_logprobs: Logprobs | None = None
        self._placement: Placement
        self._attempt: Attempt | None = None
        self._waiting: asyncio.Task[Any] | None = None  # our own task while it waits for a place
        self.started_at = self.moved_at = now()
        self.accepted = False

    # Its life.

    async def run(self) -> None:
        """Carry the choice to its end. Whoever cancels this task ends the choice with an error."""
        try:
            while not self.over:
                self._waiting = asyncio.current_task()
                placement = await self._place()
                with placement, await self._prompt(placement) as prompt:
                    self._waiting = None
                    broken = await self._send(placement, prompt)
                    if broken is not None and broken.died:
                        # One that waits for `Accepted` is not the cause: the instance was dead, or hung, before.
                        begun = self.accepted or not placement.alone
                        alone = placement.alone and not placement.shared and begun
                        await self._judge(placement.instance, at=placement, alone=alone, begun=begun)
                        if prompt and self._received == self._base:  # both may have computed the prompt at once
                            await self._judge(prompt.instance, 0.0)
                    elif broken and prompt and self._received == self._base and self._trial.about_prompt(broken):
                        if broken.prompt:
                            prompt.unread()
                        timeout = CAUSE if broken.prompt else 0.0
                        # The prompt is computed: what crashes now computes another one, if it was not alone.
                        await self._judge(prompt.instance, timeout, at=placement, alone=prompt.alone, begun=False)
                if broken is not None and not self.over:
                    self._move(broken)
                    await asyncio.sleep(broken.pause)
        except RequestError as error:
            self._fail(error)
        except asyncio.CancelledError:
            if not self.over:  # else it was `cancel` that interrupted the wait for a place
                self._fail(Overloaded("the processor is ending", retry_after=1.0))
                raise
        except Exception as error:
            self._bug(error)

    async def _place(self) -> Placement:
        about = {"again": self._sent, "alone": self._trial.suspect}
        placement = await self._tried.placed(self._acquire, **about, received=self._received)
        self._trial.placed(placement)
        return placement

    async def _judge(
        self, there: Instance | None, timeout: float | None = None, at: Placement | None = None, **kind: bool
    ) -> str:
        """Return `Trial.cause`. If there is one, the request takes part in it, which raises what `Trial.died` does."""
        cause = await self._trial.cause(there, timeout)
        if not cause or self.over or there is None:
            return ""
        self._trial.died(there, cause, at, **kind)
        return cause

    async def _prompt(self, placement: Placement) -> AbstractContextManager[RemotePrompt | None]:
        """Have the prompt computed by a prefill worker, if that pays; the context drops what is left of it there."""
        self._left, self.instance = "", placement.instance
        request, trial = self.request, placement.alone and not self._needs_prefill
        if self._prefill is None or not isinstance(request, Generate) or trial:
            return nullcontext()
        try:
            try:
                return await self._prefill(self._continued(request), placement) or nullcontext()
            except PrefillWorkerLost as lost:
                cause = await self._judge(lost.instance, CAUSE, at=placement, alone=lost.alone)
                if cause or self._needs_prefill:
                    self._left = str(lost)  # another placement, where nothing else is
                return nullcontext()
        except asyncio.CancelledError:
            task = self._waiting
            if not self._left or task is None or task.uncancel():
                raise
            return nullcontext()

    def _continued(self, request: Generate) -> Generate:
        """The request to the next instance: it goes on behind what has come."""
        if not self._history:
            return request
        return msgspec.structs.replace(request, prior_output=tokens.pack(self._history))

    async def _send(self, placement: Placement, prompt: RemotePrompt | None) -> Break | None:
        """Open an attempt at the instance and wait for its end: how it broke, None when the choice is over."""
        self._sent = True
        if self._left:
            self.instance = None
            return Break(self._left, retry=True, displaced=True)
        self._placement, self.instance = placement, placement.instance
        placement.leave, placement.stays = self._displace, self._stays
        self._tried.add(self.instance.instance_id)
        self._sends += 1
        self.accepted, self._pending_logprobs = False, None
        self._base, self.moved_at = self._received, self._now()
        request = self.request
        if isinstance(request, Generate):
            request = self._continued(request)
            if prompt is not None:
                request = msgspec.structs.replace(request, handoff=prompt.handoff.result())
                if self._needs_prefill:
                    prompt.watch(self._prompt_failed)
        if placement.alone and isinstance(request, Generate | Embed | Chat):
            request = msgspec.structs.replace(request, alone=True)
        take = prompt_taker(self._sink, self.index, request, self._logprobs) if not self._received else None
        attempt = self._attempt = Attempt(self.token, self.delta, self._lost, take)
        outbound = self._transport.open(self.instance, request, attempt)
        self.made_room.discard(placement.instance.instance_id)
        if self._attempt is attempt:  # a transport inside the process may have refused it in the call
            attempt.outbound = outbound
        if self._broke_why:
            text = "request %s moves to another instance: %s"  # a line takes longer than a move, and many move at once
            attempt.loop.call_soon(log.warning, text, self.request.request_id, self._broke_why)
            self._broke_why = ""
        try:
            if placement.alone:
                await self._until_passed(attempt, placement)
            elif prompt is not None:
                await self._until_handed_over(attempt, prompt)
            return await attempt.ended
        finally:
            self.instance = None

    @property
    def attempting(self) -> bool:
        """Whether it has been sent to the instance; else its prompt may be on the way there."""
        return self._attempt is not None

    async def _until_passed(self, attempt: Attempt, placement: Placement) -> None:
        """Wait until the instance has lived through this request: some of its answer has come, or the attempt ended."""
        since = None
        while not attempt.ended.done():
            now = self._now()
            since = now if since is None and self._received > self._base else since
            if self._received - self._base >= PASSED or (since is not None and now - since >= PASSED_AFTER):
                self._trial.passed()  # a suspect would be tried again each time it makes room for another trial
                placement.passed()
                return
            await asyncio.wait([attempt.ended], timeout=PASS_LOOK)

    async def _until_handed_over(self, attempt: Attempt, prompt: RemotePrompt) -> None:
        """Wait until the instance asks whether it may compute the prompt, whose blocks do not come, or the end."""
        while await attempt.breaks_or_asks():
            until, cause = self._now() + CAUSE, ""
            while not attempt.over and not cause and self._now() < until:
                await asyncio.wait([attempt.ended], timeout=PASS_LOOK)
                cause = await self._judge(prompt.instance, 0.0)
            if cause and not attempt.over:
                self._make_room("the prefill worker crashed, maybe at its prompt")
            attempt.confirm()

    def _stays(self) -> bool:
        return self._attempt is None or (self._received > 0 and (not self._exact or self._too_long()))

    def _displace(self) -> bool:
        if self._stays():
            return False
        self._make_room("its worker tries another request alone")
        return True

    def _make_room(self, why: str, pause: float = 0.0) -> None:
        """Leave the instance, with which nothing is wrong, to the trial of another request."""
        self._tried.forget(self._placement.instance.instance_id)
        self._sends -= 1
        self.displaced += 1
        self.made_room.add(self._placement.instance.instance_id)
        self._leave_instance(Break(why, retry=True, displaced=True, pause=pause), notify_engine=not pause)

    def _prompt_failed(self, why: str, displaced: bool = False) -> None:
        """The instance, with which nothing is wrong, waits for blocks in vain: have the prompt computed once more."""
        if self._attempt is None or self._received > self._base:
            return
        if displaced:
            self._make_room(why)
        else:
            self._tried.forget(self._placement.instance.instance_id)
            self._break(why, retry=True, prompt=True)

    def _move(self, broken: Break) -> None:
        """Decide whether another instance gets the request. Raises the error to end with if none does."""
        if broken.displaced:
            self._broke_why = broken.why
            return
        if broken.link:
            self._tried.link_lost(self._placement.instance.instance_id, self._neighbours(self._placement.instance))
        self.reconsider()
        unsent = broken.link and not self.accepted and not self._received  # as far as is known
        verdict = self._verdict(broken.why, retry=broken.retry or unsent)
        if self._received and self._too_long():
            self._migrations.too_long()
        if not verdict.again:
            raise verdict.exception()
        self._broke_at = self.moved_at if self._broke_at is None else self._broke_at
        self._broke_why = broken.why
        self._migrations.broke(self._received > 0)

    def _verdict(self, why: str, *, retry: bool) -> Verdict:
        received, exact, sends = self._received, self._exact, self._sends - self.refused
        others = self._available(self._tried.ids, received)
        return decide(Broken(why, retry, received, exact, sends, self._limit, others, self._too_long(), self._form))

    def reconsider(self) -> None:
        """Instances have gone: those to which only the link has failed are tried again when there is no other."""
        if self._attempt is None:
            self._tried.reconsider(lambda: self._available(self._tried.ids, self._received))

    def _too_long(self) -> bool:
        longest = self._longest
        return longest is not None and self._exact and self._prompt_tokens + self._received > longest

    # What ends an attempt, or all of it.

    def cancel(self) -> None:
        """The client has left: free the slot, call the sink no more."""
        if not self.over:
            self._end()

    def leave(self, why: str) -> None:
        """The instance cannot be waited for: go on elsewhere, or end with an error."""
        if self._attempt is not None:
            self._break(why, retry=False, died=True)
        elif self.instance is not None and self._waiting is not None and not self._left:
            self._left = why  # its prompt is being computed elsewhere: it has not got there
            self._waiting.cancel()

    @property
    def can_move(self) -> bool:
        """Whether another instance would get the request, if this one failed now; a suspect always leaves."""
        return self._trial.suspect or self._verdict("", retry=False).again

    def expire(self, limits: Limits) -> None:
        """Check the request's clocks; the attempt breaks (and the request may move) when one has passed.

        Before it has a place its clock is the deadline with which it waits for one.
        """
        now = self._now()
        waited = now - self.moved_at
        if limits.total is not None and now - self.started_at > limits.total:
            self._fail(REQUEST_ERRORS["TimedOut"](f"the request took longer than {limits.total:g} s in total"))
        elif self._attempt is None:
            return
        elif why := limits.passed(waited, accepted=self.accepted, answers=self._received > self._base):
            self._break(why, retry=not (self.accepted or self._received > self._base))

    def _break(self, why: str, *, retry: bool, notify_engine: bool = True, **kind: bool) -> None:
        """The attempt is worth nothing any more; `kind`, see `Break`."""
        self._leave_instance(Break(why, retry, **kind), notify_engine)

    def _lost(self, broken: Break) -> None:
        self._leave_instance(broken, notify_engine=False)

    def _fail(self, error: RequestError, *, notify_engine: bool = True) -> None:
        if not self.over:
            self._end(notify_engine=notify_engine)
            self._sink.fail(error)

    def _bug(self, error: Exception) -> None:
        """An error of ours or the tokenizer's ends this request, not its neighbours."""
        log.exception("request %s failed while its answer was read", self.request.request_id)
        self._fail(EngineFailed(f"internal error while reading the answer: {type(error).__name__}"))

    def _end(self, *, notify_engine: bool = True) -> None:
        self.over = True
        if self._broke_at is not None:
            self._settled(False)
        if self._broke_why:
            log.warning("request %s was sent to no other instance: %s", self.request.request_id, self._broke_why)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting is not asyncio.current_task():
            waiting.cancel()
        self._leave_instance(None, notify_engine)
        self._completed(self)

    def _leave_instance(self, broken: Break | None, notify_engine: bool) -> None:
        attempt, self._attempt, self.moved_at = self._attempt, None, self._now()
        if attempt is not None:
            attempt.end(broken, notify_engine=notify_engine)

    def _settled(self, ok: bool) -> None:
        assert self._broke_at is not None
        seconds, self._broke_at = self._now() - self._broke_at, None
        self._migrations.settled(seconds, ok)
        if ok and self.instance is not None:
            where = self.instance.process or f"{self.instance.instance_id:x}"
            log.info("request %s was taken by %s within %.1f ms", self.request.request_id, where, seconds * 1000)

    # What the instance sends; called by the attempt.

    def token(self, offset: int, index: int) -> None:
        """Take one token of the current attempt behind which the engine goes on: the hot path of the ingress."""
        if self.over:
            return
        received = self._received
        if received == self._base:
            self._placement.prefill_completed()
        if self._base + offset != received or self._pending_logprobs is not None:
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
                self._show(self.index, text, 1)
            else:
                self._emit(text, 1, None)
        except Exception as error:
            self._bug(error)

    def delta(self, delta: Delta) -> None:
        """Take one delta of the current attempt."""
        try:
            if isinstance(delta, Tokens):
                self._tokens(delta)
            elif isinstance(delta, Accepted):
                self._confirm()
                self.accepted = True
                self.moved_at = self._now()
                if self._broke_at is not None:
                    self._settled(True)
            elif isinstance(delta, Text):
                self._text(delta)
            elif isinstance(delta, Items):
                self._items(delta)
            elif isinstance(delta, Logprobs):
                self._pending_logprobs = delta
            elif isinstance(delta, Failed):
                self._failed(delta)
        except StreamGap as error:
            self._break(f"the stream lost frames ({error})", retry=False)
        except Exception as error:
            self._bug(error)

    def _confirm(self) -> None:
        """The instance says that it has the request: the first time that it is there, then that it asks something."""
        attempt = self._attempt
        if attempt is None:
            return
        if not self.accepted and self._placement.alone:
            attempt.confirm()  # it begins now: from here on it may be the cause of a crash
        elif self.accepted and attempt.asked is not None and not attempt.asked.done():
            attempt.asked.set_result(None)

    def _count(self, offset: int, length: int) -> int:
        """A piece of the answer has come, in tokens, characters or items: how many of those are there already."""
        if self._received == self._base:
            self._placement.prefill_completed()
        offset += self._base
        skip = unseen(self._received, offset, length) if offset != self._received else 0
        self._received += length - skip
        self.moved_at = self._now()
        return skip

    def _tokens(self, delta: Tokens) -> None:
        skip = self._count(delta.offset, len(delta.ids) >> 2)
        ids = tokens.unpack(delta.ids[skip * 4 :])
        if self._exact:
            self._history.extend(ids)
        if self._pending_logprobs is not None:
            pending, self._pending_logprobs = self._pending_logprobs, None
            if skip:
                pending = Logprobs(pending.stream, pending.offset, pending.chosen[skip:], pending.top[skip:])
            if self._logprobs is not None and ids:
                self._logprobs(self.index, pending, ids)
        before = self._output.completion_tokens
        text = self._output.push(ids, delta.finish) if ids else ""
        self._emit(text, self._output.completion_tokens - before, delta.finish)

    def _text(self, delta: Text) -> None:
        output, doubled = self._output, self._base + delta.offset != self._received
        text = delta.text[self._count(delta.offset, len(delta.text)) :]
        count = delta.tokens if text or not doubled else 0  # what came twice has been counted
        before = output.completion_tokens
        shown = output.push_text(text, count, delta.finish)
        self._emit(shown, output.completion_tokens - before, delta.finish, delta.prompt_tokens)

    def _items(self, delta: Items) -> None:
        skip = self._count(delta.offset, len(delta.items))
        for item in delta.items[skip:]:
            self._sink.chunk(self.index, item)
        if delta.finish is not None:
            self._emit("", 0, delta.finish)

    def _emit(self, text: str, count: int, engine_finish: str | None, prompt_tokens: int | None = None) -> None:
        output = self._output
        finish = output.finish
        if finish is None and engine_finish is not None:
            text += output.end(engine_finish)
            finish = engine_finish
        if text or count:
            self._show(self.index, text, count)
        if finish is not None and not self.over:
            self._trial.passed()
            self._end(notify_engine=engine_finish is None)
            finish = "stop" if finish == "eos" else finish  # OpenAI's word
            self._sink.finish(self.index, finish, output.completion_tokens, prompt_tokens)

    def _failed(self, delta: Failed) -> None:
        if delta.code == TRIAL_TAKEN:
            self._make_room(delta.message, TRIAL_PAUSE)
        elif delta.code == HANDOFF_FAILED and self._needs_prefill and self._received == self._base:
            self._prompt_failed(delta.message)
        elif delta.retry:
            self.refused += delta.code == LEAVING
            self._break(delta.message, retry=True, notify_engine=False)
        else:
            self._fail(delta.exception(), notify_engine=False)
