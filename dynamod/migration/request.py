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

from dynamod.actor import StreamGap
from dynamod.message.discovery import Instance
from dynamod.message.errors import REQUEST_ERRORS, EngineFailed, Overloaded, RequestError
from dynamod.message.ingress import Accepted, Delta, Failed
from dynamod.message.worker import LEAVING, Request
from dynamod.router.placement import Placement
from dynamod.transport.base import Transport

from .answer import Answer
from .attempt import HEARD_S, Attempt, Break, prompt_taker
from .base import Choice, Limits, MigrationCounts, Places
from .moves import Moves, Tried
from .stages import Stages

log = logging.getLogger("dynamod.migration")


class InFlightRequest:
    """One choice in flight. `completed(request)` is called once when it is over, whatever way.

    `choice`: as it was given. `instance`: where it is, None while it has no place. `accepted`: the instance of this
    attempt has taken it.
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
        self.choice, self._transport, self._now, self._completed = choice, transport, now, completed
        self.answer, self.tried = Answer(choice, now, self.delta, self._finished, self._bug), Tried()
        self.moves = Moves(choice, places, self.answer, self.tried, now, migrations)
        self.stages = Stages([make(self) for make in choice.stages], places.acquire)
        self.instance: Instance | None = None
        self.accepted = False
        self._left = ""  # why it leaves an instance to which it has not been sent
        self._attempt: Attempt | None = None
        self._waiting: asyncio.Task[Any] | None = None  # our own task while it waits for a place, or for its prompt

    @property
    def request(self) -> Request:
        """As it was asked for."""
        return self.choice.request

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.answer.over

    @property
    def attempting(self) -> bool:
        """Whether it has been sent to the instance; else its prompt may be on the way there."""
        return self._attempt is not None

    # Its life.

    async def run(self) -> None:
        """Carry the choice to its end. Cancelling this task ends the choice with an error."""
        try:
            while not self.over:
                broken = await self._turn()
                if broken is not None and not self.over:
                    await asyncio.sleep(self.moves.decide(broken, accepted=self.accepted))
        except RequestError as error:
            self._fail(error)
        except asyncio.CancelledError:
            if not self.over:  # else it was `cancel` that interrupted the wait for a place
                self._fail(Overloaded("the processor is ending", retry_after=1.0))
                raise
        except Exception as error:
            self._bug(error)
        finally:
            self.answer.close()
            self.stages.close()

    async def _turn(self) -> Break | None:
        """One place and the attempt there: how it broke, None when the choice is over."""
        self._waiting = asyncio.current_task()
        with await self.tried.placed(self.stages.place, self.answer.received) as placement:
            self._left, self.instance = "", placement.instance
            request = self.answer.continued(self.request)
            try:
                return await self.stages.attempt(placement, request, partial(self._send, placement))
            except asyncio.CancelledError:
                if not self._left or self._waiting is None or self._waiting.uncancel():
                    raise
                return Break(self._left, retry=True, displaced=True)
            finally:
                self.instance = None

    async def _send(self, placement: Placement, request: Request) -> Break | None:
        """Open an attempt at the instance and wait for its end: how it broke, None when the choice is over."""
        task, self._waiting = self._waiting, None
        assert task is not None
        instance, choice, answer = placement.instance, self.choice, self.answer
        placement.leave, placement.stays = self._displace, self._stays
        self.tried.add(instance.instance_id)
        self.accepted = False
        answer.begin(placement)
        lost = partial(self._leave_instance, notify_engine=False)
        take = None if answer.received else prompt_taker(choice.sink, choice.index, request, choice.logprobs)
        attempt = self._attempt = Attempt(task.get_loop(), answer.token, self.delta, lost, take)
        outbound = self._transport.open(instance, request, attempt)
        self.tried.made_room.discard(instance.instance_id)
        if self._attempt is attempt:  # a transport inside the process may have refused it in the call
            attempt.outbound = outbound
        self.moves.sent(attempt.loop.call_soon)
        try:
            await self.stages.watch(attempt, placement)
            return await attempt.ended
        finally:
            self.instance = None

    # What ends an attempt, or all of it.

    def cancel(self) -> None:
        """The client has left: free the slot, call the sink no more."""
        if not self.over:
            self._end()

    def leave(self, why: str) -> None:
        """The instance cannot be waited for: continue elsewhere, or end with an error."""
        if self._attempt is not None:
            heard = self.accepted and self._now() - self.answer.moved_at < HEARD_S
            self._leave_instance(Break(why, retry=False, died=True, heard=heard))
        elif self.instance is not None and self._waiting is not None and not self._left:
            self._left = why  # its prompt is being computed elsewhere: it has not got there
            self._waiting.cancel()

    def give_back(self, broken: Break) -> None:
        """Leave the instance, with which nothing is wrong; `broken.displaced`: to another request."""
        self.tried.forget(self.answer.placement.instance.instance_id, displaced=broken.displaced)
        self._leave_instance(broken, notify_engine=not broken.pause)

    def _stays(self) -> bool:
        return self._attempt is None or self.moves.stays

    def _displace(self) -> bool:
        if self._stays():
            return False
        self.give_back(Break("its worker tries another request alone", retry=True, displaced=True))
        return True

    def expire(self, limits: Limits) -> None:
        """Check the request's clocks; the attempt breaks (and the request may move) when one has passed.

        Before it has a place its clock is the deadline with which it waits for one.
        """
        now, answer = self._now(), self.answer
        if limits.total is not None and now - answer.started_at > limits.total:
            self._fail(REQUEST_ERRORS["TimedOut"](f"the request took longer than {limits.total:g} s in total"))
        elif self._attempt is None:
            return
        elif why := limits.passed(now - answer.moved_at, accepted=self.accepted, answers=answer.begun):
            self._leave_instance(Break(why, retry=not (self.accepted or answer.begun)))

    def _fail(self, error: RequestError, *, notify_engine: bool = True) -> None:
        if not self.over:
            self._end(notify_engine=notify_engine)
            self.choice.sink.fail(error)

    def _bug(self, error: Exception) -> None:
        """An error of ours or the tokenizer's ends this request, not its neighbours."""
        log.exception("request %s failed while its answer was read", self.request.request_id)
        self._fail(EngineFailed(f"internal error while reading the answer: {type(error).__name__}"))

    def _finished(self, told: bool) -> None:
        self.stages.finished()
        self._end(notify_engine=not told)

    def _end(self, *, notify_engine: bool = True) -> None:
        self.answer.over = True
        self.moves.ended()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting is not asyncio.current_task():
            waiting.cancel()
        self._leave_instance(None, notify_engine=notify_engine)
        self._completed(self)

    def _leave_instance(self, broken: Break | None, *, notify_engine: bool = True) -> None:
        attempt, self._attempt, self.answer.moved_at = self._attempt, None, self._now()
        if attempt is not None:
            attempt.end(broken, notify_engine=notify_engine)

    # What the instance sends; called by the attempt.

    def delta(self, delta: Delta) -> None:
        """Take one delta of the current attempt."""
        try:
            if isinstance(delta, Accepted):
                if self._attempt is not None:
                    self._attempt.taken(again=self.accepted, alone=self.answer.placement.alone)
                self.accepted = True
                self.answer.moved_at = self._now()
                self.moves.taken(self.instance)
            elif isinstance(delta, Failed):
                self._failed(delta)
            else:
                self.answer.take(delta)
        except StreamGap as error:
            self._leave_instance(Break(f"the stream lost frames ({error})", retry=False))
        except Exception as error:
            self._bug(error)

    def _failed(self, failed: Failed) -> None:
        if self.stages.failed(failed):
            return
        if failed.retry:
            self.tried.refused += failed.code == LEAVING
            self._leave_instance(Break(failed.message, retry=True), notify_engine=False)
        else:
            self._fail(failed.exception(), notify_engine=False)
