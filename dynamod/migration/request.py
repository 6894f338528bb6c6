"""One choice of a request on its way through an instance, and through another when that one fails.

`run` is its life: acquire a place, open an attempt there, wait for the end of it, decide, again or finish. Stages wrap
the first three. What the instance sends meanwhile does not pass through that coroutine: the answer is the sink of the
stream, once per engine step and stream.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from dynamod.actor import StreamGap
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import REQUEST_ERRORS, EngineFailed, Overloaded, RequestError
from dynamod.message.ingress import Accepted, Delta, Failed
from dynamod.message.worker import LEAVING, Generate, Request
from dynamod.router.placement import Placement
from dynamod.transport.base import Transport

from .answer import Answer
from .attempt import Attempt, Break
from .base import Choice, Limits, MigrationCounts, Places
from .decision import Broken, Verdict, decide
from .prompt import prompt_taker
from .stages import Ask, Place, Stage, Try
from .tried import Tried

log = logging.getLogger("dynamod.migration")


class InFlightRequest:
    """One choice in flight. `completed(request)` is called once when it is over, whatever way.

    `instance`: where it is, None while it has no place. `accepted`: the instance of this attempt has taken it.
    `displaced`: how often it has left an instance for another request, which is no failure; `made_room`: those
    instances, to which it may come back. `refused`: how often an instance ended before it began with it.
    """

    def __init__(
        self,
        choice: Choice,
        places: Places,
        transport: Transport,
        now: Callable[[], float],
        migrations: MigrationCounts,
        completed: Callable[["InFlightRequest"], None],
    ) -> None:
        self.request, self._choice, self._places, self._transport = choice.request, choice, places, transport
        self._now, self._migrations, self._completed = now, migrations, completed
        self.answer = Answer(choice, now, self.delta, self._finished, self._bug)
        self.instance: Instance | None = None
        self.accepted = False
        self.displaced = self.refused = 0
        self.made_room: set[int] = set()
        self.started_at = now()
        self._tried, self._sends, self._placed = Tried(), 0, False
        self._broke_at: float | None = None  # until another instance has taken the request
        self._broke_why = ""  # until it is sent to another instance
        self._left = ""  # why it leaves an instance to which it has not been sent
        self._attempt: Attempt | None = None
        self._waiting: asyncio.Task[Any] | None = None  # our own task while it waits for a place, or for its prompt
        self._stages: list[Stage] = [make(self) for make in choice.stages]
        self._place: Place = places.acquire
        for stage in reversed(self._stages):
            self._place = partial(stage.place, proceed=self._place)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.answer.over

    @property
    def attempting(self) -> bool:
        """Whether it has been sent to the instance; else its prompt may be on the way there."""
        return self._attempt is not None

    @property
    def suspect(self) -> bool:
        """Whether it may crash its instance."""
        return any(stage.suspect for stage in self._stages)

    # Its life.

    async def run(self) -> None:
        """Carry the choice to its end. Whoever cancels this task ends the choice with an error."""
        try:
            while not self.over:
                broken = await self._turn()
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

    async def _turn(self) -> Break | None:
        """One place and the attempt there: how it broke, None when the choice is over."""
        self._waiting = asyncio.current_task()
        ask = Ask(self._tried.ids, self._placed, received=self.answer.received)
        with await self._tried.placed(self._place, ask) as placement:
            self._placed, self._left, self.instance = True, "", placement.instance
            attempt: Try = partial(self._send, placement)
            for stage in reversed(self._stages):
                attempt = partial(stage.attempt, placement, proceed=attempt)
            try:
                return await attempt(self._continued())
            except asyncio.CancelledError:
                if not self._left or self._waiting is None or self._waiting.uncancel():
                    raise
                return Break(self._left, retry=True, displaced=True)
            finally:
                self.instance = None

    def _continued(self) -> Request:
        """The request to the next instance: it continues behind what has come."""
        request = self.request
        if isinstance(request, Generate) and self.answer.history:
            return msgspec.structs.replace(request, prior_output=tokens.pack(self.answer.history))
        return request

    async def _send(self, placement: Placement, request: Request) -> Break | None:
        """Open an attempt at the instance and wait for its end: how it broke, None when the choice is over."""
        self._waiting = None
        instance, choice, answer = placement.instance, self._choice, self.answer
        placement.leave, placement.stays = self._displace, self._stays
        self._tried.add(instance.instance_id)
        self._sends += 1
        self.accepted = False
        answer.begin(placement)
        take = None if answer.received else prompt_taker(choice.sink, choice.index, request, choice.logprobs)
        attempt = self._attempt = Attempt(answer.token, self.delta, self._lost, take)
        outbound = self._transport.open(instance, request, attempt)
        self.made_room.discard(instance.instance_id)
        if self._attempt is attempt:  # a transport inside the process may have refused it in the call
            attempt.outbound = outbound
        if self._broke_why:
            text = "request %s moves to another instance: %s"  # a line takes longer than a move, and many move at once
            attempt.loop.call_soon(log.warning, text, self.request.request_id, self._broke_why)
            self._broke_why = ""
        try:
            for stage in self._stages:
                await stage.watch(attempt, placement)
            return await attempt.ended
        finally:
            self.instance = None

    async def blame(
        self,
        instance: Instance | None,
        timeout: float | None = None,
        at: Placement | None = None,
        *,
        alone: bool = False,
        begun: bool = True,
    ) -> str:
        """`Stage.blame` of the first stage that knows a cause. `instance`: None for one that computed nothing."""
        for stage in self._stages if instance is not None else ():
            assert instance is not None
            if cause := await stage.blame(instance, timeout, at, alone=alone, begun=begun):
                return cause
        return ""

    def _move(self, broken: Break) -> None:
        """Decide whether another instance gets the request. Raises the error to end with if none does."""
        if broken.displaced:
            self._broke_why = broken.why
            return
        if broken.link:
            lost = self.answer.placement.instance
            self._tried.link_lost(lost.instance_id, self._places.neighbours(lost))
        self.reconsider()
        received = self.answer.received
        unsent = broken.link and not self.accepted and not received  # as far as is known
        verdict = self._verdict(broken.why, retry=broken.retry or unsent)
        if received and self._choice.too_long(received):
            self._migrations.too_long()
        if not verdict.again:
            raise verdict.exception()
        self._broke_at = self.answer.moved_at if self._broke_at is None else self._broke_at
        self._broke_why = broken.why
        self._migrations.broke(received > 0)

    def _verdict(self, why: str, *, retry: bool) -> Verdict:
        choice, received, sends = self._choice, self.answer.received, self._sends - self.refused
        others, form = self._available(), getattr(self.request, "grammar", None) is not None
        return decide(
            Broken(why, retry, received, choice.exact, sends, choice.limit, others, choice.too_long(received), form)
        )

    def _available(self) -> bool:
        return self._places.available(self._tried.ids, self.answer.received)

    def reconsider(self) -> None:
        """Instances have gone: those to which only the link has failed are tried again when there is no other."""
        if self._attempt is None:
            self._tried.reconsider(self._available)

    # What ends an attempt, or all of it.

    def cancel(self) -> None:
        """The client has left: free the slot, call the sink no more."""
        if not self.over:
            self._end()

    def leave(self, why: str) -> None:
        """The instance cannot be waited for: go on elsewhere, or end with an error."""
        if self._attempt is not None:
            self._leave_instance(Break(why, retry=False, died=True))
        elif self.instance is not None and self._waiting is not None and not self._left:
            self._left = why  # its prompt is being computed elsewhere: it has not got there
            self._waiting.cancel()

    def make_room(self, why: str, pause: float = 0.0) -> None:
        """Leave the instance, with which nothing is wrong, to another request. `pause`: seconds before the next."""
        instance = self.answer.placement.instance.instance_id
        self._tried.forget(instance)
        self._sends -= 1
        self.displaced += 1
        self.made_room.add(instance)
        self._leave_instance(Break(why, retry=True, displaced=True, pause=pause), notify_engine=not pause)

    def prompt_failed(self, why: str) -> None:
        """The instance, with which nothing is wrong, waits for a prompt in vain: have it computed once more."""
        self._tried.forget(self.answer.placement.instance.instance_id)
        self._leave_instance(Break(why, retry=True, prompt=True))

    def _stays(self) -> bool:
        answer, choice = self.answer, self._choice
        return self._attempt is None or (answer.received > 0 and (not choice.exact or choice.too_long(answer.received)))

    def _displace(self) -> bool:
        if self._stays():
            return False
        self.make_room("its worker tries another request alone")
        return True

    @property
    def can_move(self) -> bool:
        """Whether another instance would get the request, if this one failed now; a suspect always leaves."""
        return self.suspect or self._verdict("", retry=False).again

    def expire(self, limits: Limits) -> None:
        """Check the request's clocks; the attempt breaks (and the request may move) when one has passed.

        Before it has a place its clock is the deadline with which it waits for one.
        """
        now, answer = self._now(), self.answer
        if limits.total is not None and now - self.started_at > limits.total:
            self._fail(REQUEST_ERRORS["TimedOut"](f"the request took longer than {limits.total:g} s in total"))
        elif self._attempt is None:
            return
        elif why := limits.passed(now - answer.moved_at, accepted=self.accepted, answers=answer.begun):
            self._leave_instance(Break(why, retry=not (self.accepted or answer.begun)))

    def _lost(self, broken: Break) -> None:
        self._leave_instance(broken, notify_engine=False)

    def _fail(self, error: RequestError, *, notify_engine: bool = True) -> None:
        if not self.over:
            self._end(notify_engine=notify_engine)
            self._choice.sink.fail(error)

    def _bug(self, error: Exception) -> None:
        """An error of ours or the tokenizer's ends this request, not its neighbours."""
        log.exception("request %s failed while its answer was read", self.request.request_id)
        self._fail(EngineFailed(f"internal error while reading the answer: {type(error).__name__}"))

    def _finished(self, told: bool) -> None:
        for stage in self._stages:
            stage.finished()
        self._end(notify_engine=not told)

    def _end(self, *, notify_engine: bool = True) -> None:
        self.answer.over = True
        if self._broke_at is not None:
            self._settled(False)
        if self._broke_why:
            log.warning("request %s was sent to no other instance: %s", self.request.request_id, self._broke_why)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting is not asyncio.current_task():
            waiting.cancel()
        self._leave_instance(None, notify_engine=notify_engine)
        self._completed(self)

    def _leave_instance(self, broken: Break | None, *, notify_engine: bool = True) -> None:
        attempt, self._attempt, self.answer.moved_at = self._attempt, None, self._now()
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

    def delta(self, delta: Delta) -> None:
        """Take one delta of the current attempt."""
        try:
            if isinstance(delta, Accepted):
                self._confirm()
                self.accepted = True
                self.answer.moved_at = self._now()
                if self._broke_at is not None:
                    self._settled(True)
            elif isinstance(delta, Failed):
                self._failed(delta)
            else:
                self.answer.take(delta)
        except StreamGap as error:
            self._leave_instance(Break(f"the stream lost frames ({error})", retry=False))
        except Exception as error:
            self._bug(error)

    def _confirm(self) -> None:
        """The instance says that it has the request: the first time that it is there, then that it asks something."""
        attempt = self._attempt
        if attempt is None:
            return
        if not self.accepted and self.answer.placement.alone:
            attempt.confirm()  # it begins now: from here on it may be the cause of a crash
        elif self.accepted and attempt.asked is not None and not attempt.asked.done():
            attempt.asked.set_result(None)

    def _failed(self, failed: Failed) -> None:
        if any(stage.failed(failed) for stage in self._stages):
            return
        if failed.retry:
            self.refused += failed.code == LEAVING
            self._leave_instance(Break(failed.message, retry=True), notify_engine=False)
        else:
            self._fail(failed.exception(), notify_engine=False)
