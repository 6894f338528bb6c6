"""What crashes of workers say about requests.

Of one choice: how many workers ended with it, and whether it is tried alone (`IsolationStage`). Of the requests of an
ingress process: which were at workers that crashed or hung, and which are known to be the cause (`RequestSuspicions`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from dynamod.discovery.view import UNRESPONSIVE, View
from dynamod.message.discovery import Instance
from dynamod.message.errors import EngineFailed, PoisonRequest
from dynamod.message.ingress import Failed
from dynamod.message.worker import PASSED, TRIAL_PAUSE, TRIAL_TAKEN, Chat, Embed, Generate, Request
from dynamod.migration.attempt import Attempt, Break
from dynamod.migration.stages import CAUSE, Ask, MakeStage, Place, Stage, Try
from dynamod.observe.bounded import bounded
from dynamod.router.placement import Placement

if TYPE_CHECKING:
    from dynamod.migration.request import InFlightRequest

PASSED_AFTER = 1.0
"""Seconds after the first token of a request that is tried alone, for slow engines; see `PASSED`."""

PASS_LOOK = 0.02
"""Seconds between looks at the answer of a request that is tried alone."""

REMEMBERED = 600.0
"""Seconds for which requests like one that crashed a worker are refused, or tried alone."""

MOST = 10_000
"""Requests that are remembered."""

MAX_DEATHS = 2
"""Workers that may crash or hang with a request before it ends."""

LATE_HANG_S = 1.5
"""Seconds after an attempt in which a hang may become known that began during the attempt.

A daemon says that a worker hangs after some 2 s without a sign of life. A hang that becomes known later began after the
attempt.
"""


class IsolationStage(Stage):
    """The part of one choice in crashes of its workers.

    `suspect`: whether the next placement is alone at its instance. `deaths`: workers that crashed or hung with the
    request, except those for which another request was convicted. A request that is like one of a crash begins as a
    suspect with one death.
    """

    def __init__(self, suspicions: RequestSuspicions, suspect: bool, flight: InFlightRequest) -> None:
        self._suspicions, self._flight = suspicions, flight
        self.suspect = self._ever = suspect
        self.deaths = int(suspect)
        self._ended: set[int] = set()  # instances whose end was judged
        self._left: list[Placement] = []  # places that it has left for a trial; see `_judge_left`
        self._doubted: list[tuple[Placement, Instance, str]] = []  # ends that do not count unless its place ends, too
        self._unknown: dict[int, tuple[Instance, float]] = {}  # until when; see `_judge_late`

    def place(self, ask: Ask, proceed: Place) -> Awaitable[Placement]:
        """A suspect asks for an instance alone. Another place means that another request was convicted meanwhile.

        Or there is no time to try the suspect: then its crashes still count.
        """
        if self.suspect or self._left or self._unknown:
            return self._placed(ask, proceed)
        return proceed(ask)  # as most requests do

    async def _placed(self, ask: Ask, proceed: Place) -> Placement:
        self._judge_earlier()
        placement = await proceed(ask if ask.alone == self.suspect else ask._replace(alone=self.suspect))
        if self.suspect and not placement.alone:
            self.suspect, self.deaths = False, self.deaths if placement.untried else 0
        return placement

    async def attempt(self, placement: Placement, request: Request, proceed: Try) -> Break | None:
        """Ask why the instance has gone, if it has. Raises what `blame` raises."""
        self._judge_earlier()  # again: the wait for the place may have been long
        if self.suspect and not placement.alone:
            return Break("a worker hangs, maybe because of this request", retry=True, displaced=True)
        if placement.alone and isinstance(request, Generate | Embed | Chat):
            request = msgspec.structs.replace(request, alone=True)
        broken = await proceed(request)
        if broken is not None and broken.died:
            # A request that waits for `Accepted` is not the cause: the instance was dead, or hung, before.
            begun = self._flight.accepted or not placement.alone
            alone = placement.alone and not placement.shared and begun
            cause = await self._cause(placement.instance, None)
            if cause:
                works = broken.heard and cause == UNRESPONSIVE  # again: what stopped it was not this request
                self.died(placement.instance, cause, placement, alone=alone and not works, begun=begun and not works)
            if not begun:
                for other in placement.made_room:
                    other.cause = cause
        elif broken is not None and broken.displaced and not broken.pause:  # with a pause: the instance never had it
            self._left.append(placement)
            self._may_hang(placement.instance)
        return broken

    def _judge_earlier(self) -> None:
        """Look at the instances of earlier attempts. Raises EngineFailed as `died` does."""
        if self._left:
            self._judge_left()
        if self._unknown:
            self._judge_late()

    def _judge_left(self) -> None:
        """Count the instances that crashed or hung in the step that this request was in when it left for a trial.

        The worker accepts a suspect after the step that runs then. A worker that ends before has ended in that step.
        The prefill worker that had ended before counts then as well: either may have ended with the prompt. Raises
        EngineFailed where one of them is the second.
        """
        for place in [one for one in self._left if one.cause]:
            self._left.remove(place)
            helpers = [(instance, cause) for at, instance, cause in self._doubted if at is place]
            for instance, cause in [(place.instance, place.cause), *helpers]:
                self.died(instance, cause, None, alone=False, begun=True)

    def _may_hang(self, instance: Instance, until: float | None = None) -> None:
        """Look for a while whether `instance`, which had the request `until` then, turns out to hang since before."""
        end = (asyncio.get_running_loop().time() if until is None else until) + LATE_HANG_S
        self._unknown[instance.instance_id] = instance, end

    def _judge_late(self) -> None:
        """Count the instances of earlier attempts that are known to hang by now.

        A prefill worker and the worker that answers may hang at one prompt at the same moment, and the news of one may
        arrive after that of the other. An instance that the request has left for a trial may have hung before. Raises
        EngineFailed where an instance is the second one that ended with this request.
        """
        now = asyncio.get_running_loop().time()
        for key, (instance, until) in list(self._unknown.items()):
            hangs = now <= until and self._suspicions.hangs(instance)
            if hangs or now > until:
                self._unknown.pop(key, None)
            if hangs and not self._flight.over:
                self.died(instance, UNRESPONSIVE, None, alone=False, begun=True)

    def watch(self, attempt: Attempt, placement: Placement) -> Awaitable[None] | None:
        """Wait until the instance has lived through this request: some of its answer has come, or the attempt ended."""
        return self._until_passed(attempt, placement) if placement.alone else None

    async def _until_passed(self, attempt: Attempt, placement: Placement) -> None:
        answer, loop, since = self._flight.answer, attempt.loop, None
        while placement.alone and not attempt.ended.done():
            now = loop.time()
            since = now if since is None and answer.begun else since
            if answer.received - answer.base >= PASSED or (since is not None and now - since >= PASSED_AFTER):
                self.finished()  # a suspect would be tried again each time it makes room for another trial
                placement.passed()
                return
            await asyncio.wait([attempt.ended], timeout=PASS_LOOK)

    async def blame(
        self,
        instance: Instance,
        timeout: float | None,
        at: Placement | None,
        *,
        alone: bool,
        begun: bool,
        until: float | None,
    ) -> str:
        """As `Stage.blame`.

        Raises PoisonRequest for a request that was alone, EngineFailed for one whose second worker this is.
        """
        cause = await self._cause(instance, timeout)
        if cause == UNRESPONSIVE and until is not None and asyncio.get_running_loop().time() > until + LATE_HANG_S:
            return ""  # the instance has answered then, so the hang began later
        if cause:
            self.died(instance, cause, at, alone=alone, begun=begun)
        elif at is None and begun:
            self._may_hang(instance, until)
        return cause

    async def _cause(self, instance: Instance, timeout: float | None) -> str:
        """Why an instance crashed or hung; empty also where the choice is over."""
        cause = await self._suspicions.cause(instance, timeout)
        return "" if self._flight.over else cause

    def died(self, instance: Instance, cause: str, at: Placement | None, *, alone: bool, begun: bool) -> None:
        """`instance` crashed or hung while it had the request. Arguments and errors are those of `blame`."""
        request = self._flight.request
        if at is not None and alone:
            at.guilty = True
            raise self._suspicions.convict(request, cause)
        self._suspicions.suspect(request)
        self.suspect = self._ever = True
        if not begun and at is not None and at.instance is not instance:
            self._doubted.append((at, instance, cause))
        if not begun or instance.instance_id in self._ended:
            return
        self._ended.add(instance.instance_id)
        self.deaths += 1
        if self.deaths >= MAX_DEATHS:
            raise EngineFailed(f"{cause}; it is the second worker that ended with this request")

    def failed(self, failed: Failed) -> bool:
        """The instance tries another request alone: come back a little later."""
        if failed.code == TRIAL_TAKEN:
            self._flight.give_back(Break(failed.message, retry=True, displaced=True, pause=TRIAL_PAUSE))
        return failed.code == TRIAL_TAKEN

    def finished(self) -> None:
        """An instance has lived through the request, alone, or the answer is complete."""
        if self._ever:
            self._suspicions.acquit(self._flight.request)
        self.suspect, self.deaths = False, 0
        self._left.clear()
        self._doubted.clear()
        self._unknown.clear()


class RequestSuspicions:
    """What an ingress process remembers of requests at crashes.

    `now`: seconds of a monotonic clock. `node()`: the name of this node.
    """

    def __init__(self, view: View, now: Callable[[], float], node: Callable[[], str]) -> None:
        self._view, self._now, self._node = view, now, node
        self._known: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # -> since when; the cause if it is guilty
        bounded(self, "suspect requests", MOST, lambda one: len(one._known), "requests")

    async def cause(self, instance: Instance, timeout: float | None = None) -> str:
        """Why an instance ended, if it crashed or hung; empty when it was ended on purpose, or the cause is unknown.

        `timeout`: seconds to wait for that; None: as long as it takes when the connection to it has failed. That of a
        process on another node is noticed by what is known of it.
        """
        if timeout is None:
            timeout = CAUSE if instance.node == self._node() else 0.0
        return await self._view.cause(instance, timeout)

    def hangs(self, instance: Instance) -> bool:
        """Whether an instance is known to hang now."""
        return self._view.quarantined(instance)

    def begin(self, request: Request) -> MakeStage:
        """The stage of a new request. Raises PoisonRequest for one like another that was guilty."""
        return partial(IsolationStage, self, self.check(request))

    def check(self, request: Request) -> bool:
        """Whether a new request is to be tried alone. Raises PoisonRequest for one like another that was guilty."""
        if not self._known:
            return False
        since, cause = self._known.get(_content(request), (0.0, ""))
        if not since or self._now() - since > REMEMBERED:
            return False
        if cause:
            raise _poison(cause, "another request like this one")
        return True

    def suspect(self, request: Request) -> None:
        """The request was at an instance that crashed or hung."""
        self._remember(request, "")

    def acquit(self, request: Request) -> None:
        """An instance has lived through it, alone: others like it are nothing special."""
        self._known.pop(_content(request), None)

    def convict(self, request: Request, cause: str) -> PoisonRequest:
        """It was alone there."""
        self._remember(request, cause)
        return _poison(cause, "this request")

    def _remember(self, request: Request, cause: str) -> None:
        key = _content(request)
        self._known[key] = (self._now(), cause)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)


def _poison(cause: str, who: str) -> PoisonRequest:
    return PoisonRequest(f"{who} ended two workers, the second one while it was alone there: {cause}")


def _content(request: Request) -> bytes:
    """What the engine works on: a prompt crashes it whatever the request's id, sampling and limits."""
    content = request.token_ids if isinstance(request, Generate) else msgspec.msgpack.encode(_anonymous(request))
    return blake2b(content, digest_size=16).digest()


def _anonymous(request: Request) -> Request:
    return msgspec.structs.replace(request, request_id="")
