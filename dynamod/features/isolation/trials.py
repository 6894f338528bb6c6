"""Requests whose worker crashed or hung, tried again one at a time, each alone on one worker.

One of them may be the cause. If it ends another worker while it is alone there, it is. The others then continue as
usual, except for requests without an answer. More than one request may crash workers, so requests without an answer are
tried alone too, as many as the time allows. A second cause that was not tried alone costs one more worker.

A worker whose other streams cannot move to another worker is no place for a trial: a crash would end these streams,
and would convict no request. The trial goes to a worker without such streams, or waits until one has none.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Mapping
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from dynamod.ingress.dispatch_stage import DispatchStage, Key, Waiting
from dynamod.message.discovery import PREFILL
from dynamod.message.errors import Overloaded, RequestError
from dynamod.router.active import ActiveLoad
from dynamod.router.placement import Acquire, Placement

if TYPE_CHECKING:
    from dynamod.ingress.dispatcher import Dispatcher

GATHER = 0.005
"""Seconds in which the requests of one worker come together, so that the most suspicious one is the first."""

QUIET_WAIT_S = 60.0
"""Seconds for which a trial waits for a worker without streams that stay, while other workers take requests."""

ONLY_QUIET_WAIT_S = 10.0
"""The same where all other requests wait too, because no other worker is there: less than their clock for a place."""

QUIET_LOOK_S = 0.05
"""Seconds between looks whether the streams that stay have ended."""

MAX_KEPT = 8
"""Suspects that are tried alone whatever time that takes."""

KEPT_S = 10.0
"""Seconds after their crash, or after a conviction, in which further suspects are tried alone: less than their clock
for a place. A worker that stops for a moment may have had thousands of requests."""


class RetryBudget:
    """How many trials may begin: `rate` per second and `share` of the requests, at most `burst` at once."""

    def __init__(self, now: Callable[[], float], rate: float = 3.0, share: float = 0.2, burst: float = 10.0) -> None:
        self._now, self._rate, self._share, self._burst = now, rate, share, burst
        self._left, self._at = burst, now()
        self.requests = 0  # since the last trial; whoever takes requests counts them

    def wait(self) -> float:
        """Seconds until a trial may begin, 0: now."""
        now = self._now()
        earned = (now - self._at) * self._rate + self.requests * self._share
        self._left, self._at, self.requests = min(self._burst, self._left + earned), now, 0
        return (1 - self._left) / self._rate if self._left < 1 - 1e-6 else 0.0

    def spend(self) -> None:
        """A trial has begun."""
        self._left -= 1


def staying(active: ActiveLoad, instance: int) -> int:
    """How many of the requests that this process has at `instance` cannot leave it now."""
    return sum(isinstance(one, Placement) and one.stays() for one in active.at(instance))


def foreign(active: ActiveLoad, instance: int) -> int:
    """How many requests of other ingress processes are at `instance`, as far as the worker has published them."""
    return sum(not isinstance(one, Placement) for one in active.at(instance))


def trial_place(stay: Mapping[int, int], active: ActiveLoad, reserved: int | None, draw: Callable[[], float]) -> int:
    """The instance for a trial, of the keys of `stay`: one where no stream stays, else the one with the fewest.

    Of several the one with the fewest requests of other ingress processes: these would share a crash. `stay`: streams
    that stay, by instance. `reserved`: the instance that takes no other requests since the last look; kept as long as
    no other is better. `draw`: numbers from 0 to 1, so that several ingress processes seldom choose the same instance.
    """
    others = {one: foreign(active, one) for one in stay}
    best = min(stay, key=lambda one: (stay[one], others[one], active.of(one).requests, draw()))
    if reserved is None or reserved not in stay:
        return best
    return reserved if stay[best] or (not stay[reserved] and others[reserved] <= others[best]) else best


class Trials(DispatchStage):
    """The trials of all models and pools of a dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._budget = RetryBudget(asyncio.get_running_loop().time)
        self._isolations: dict[Key, Isolation] = {}

    def acquire(self, key: Key, message: Acquire) -> asyncio.Future[Placement] | None:
        """Take a request over that is to be tried alone."""
        if not message.alone:
            self._budget.requests += not message.again
            return None
        if key not in self._isolations:
            self._isolations[key] = Isolation(self._dispatcher, key, self._budget)
        return self._isolations[key].add(message)

    def reserved(self, key: Key) -> int | None:
        """The instance of a trial."""
        isolation = self._isolations.get(key)
        return isolation.instance if isolation is not None else None

    def waiting(self, key: Key) -> int:
        """Requests that wait to be tried alone."""
        return len(self._isolations.get(key, ()))

    def load_fell(self, key: Key) -> None:
        """The next trial may begin."""
        if (isolation := self._isolations.get(key)) is not None:
            if isolation.over:
                del self._isolations[key]
            else:
                asyncio.get_running_loop().call_soon(isolation.serve)


class Isolation:
    """The suspects of one model and pool. The one with the least of its answer is the first, of equals the newest."""

    def __init__(self, dispatcher: Dispatcher, key: Key, budget: RetryBudget) -> None:
        self._dispatcher, self._key, self._budget = dispatcher, key, budget
        self._loop = asyncio.get_running_loop()
        self._suspects: list[Waiting] = []
        self._arrivals = count()
        self._trial: Placement | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._left = MAX_KEPT  # suspects since the last conviction that will be tried whatever time that takes
        self._convicted_at = -inf
        self._gone: list[Placement] = []  # left `instance` for the next trial there
        self._restarting = False  # no worker is left; a suspect waits for one that is started again
        self.instance: int | None = None
        """The worker of the trial, which takes no other requests."""

    @property
    def over(self) -> bool:
        """Whether no request is tried, and none waits for a trial."""
        return self._trial is None and not self._suspects

    def __len__(self) -> int:
        return sum(not suspect.turn.done() for suspect in self._suspects)

    def add(self, message: Acquire) -> asyncio.Future[Placement]:
        """A request to be tried alone; the future is its place."""
        turn: asyncio.Future[Placement] = self._loop.create_future()
        rank = (message.received, -next(self._arrivals))
        now = self._loop.time()
        insort(self._suspects, Waiting(rank, message, turn, now, now + KEPT_S))
        self._later(GATHER)
        return turn

    def serve(self) -> None:
        """Look at the trial; when it is over begin the next one."""
        trial = self._trial
        if trial is not None:
            if trial.alone:
                return
            self._trial = None
            if trial.guilty:
                self.instance = None
                self._release()
        now = self._loop.time()
        while self._suspects and (
            (first := self._suspects[0]).turn.done() or (now > first.until and not self._spared(first))
        ):
            del self._suspects[0]
            if not first.turn.done():  # else its client has left, or its clock has passed
                first.message.untried = first.since > self._convicted_at  # else its crash was another request's
                self._acquit(first)
        if not self._suspects:
            self.instance = None
            return
        if wait := self._budget.wait():
            self._later(wait)
        if self._timer is None:
            self._try(self._suspects[0])

    def _spared(self, suspect: Waiting) -> bool:
        """Whether a suspect is tried although its time is over."""
        if suspect.until < inf and suspect.since > self._convicted_at and self._left:
            self._left, suspect.until = self._left - 1, inf
        return suspect.until == inf

    def _release(self) -> None:
        """One suspect was convicted: those with an answer continue, and later those for which the time is too short."""
        waiting = [suspect for suspect in self._suspects if not suspect.turn.done()]
        self._suspects = [suspect for suspect in waiting if not suspect.message.received]  # in front of the others
        self._convicted_at, self._left = self._loop.time(), MAX_KEPT
        for place, suspect in enumerate(self._suspects):
            suspect.until = inf if place < MAX_KEPT else self._convicted_at + KEPT_S
        for suspect in waiting[len(self._suspects) :]:
            self._acquit(suspect)

    def _try(self, suspect: Waiting) -> None:
        try:
            placement = self._place(suspect.message, self._loop.time() - suspect.since)
        except RequestError as error:
            suspect.turn.set_exception(error)
            self._later(0.0)
            return
        if placement is not None:
            self._budget.spend()
            self._trial = placement
            del self._suspects[0]
            suspect.turn.set_result(placement)
        elif self.instance is not None or self._restarting:
            self._later(QUIET_LOOK_S)

    def _place(self, message: Acquire, waited: float) -> Placement | None:
        """Place a suspect alone at an untried worker; None while it waits for one without streams that stay.

        The other requests there move to other workers. `waited`: seconds. Raises Overloaded, Internal.
        """
        desk, key = self._dispatcher, self._key
        router, serving = desk.router(key), desk.serving(key).instances
        out = {*message.exclude, *desk.unable(key, message)}
        untried = [one.instance_id for one in serving if one.instance_id not in out]
        if not untried and message.pool == PREFILL:
            return None  # its worker that answers is there and waits
        if not serving and waited < ONLY_QUIET_WAIT_S:
            self.instance, self._restarting = None, True
            return None  # the last worker has crashed with another suspect and is started again
        self._restarting = False
        if router is None or not untried:
            raise Overloaded(f"No other instance of model {message.model!r} is ready.", retry_after=1.0)
        active = router.state.active
        stay = {one: staying(active, one) for one in untried}
        before, self.instance = self.instance, trial_place(stay, active, self.instance, desk.context.random.random)
        if (chosen := self.instance) != before:
            self._gone = []
        if stay[chosen]:
            limit = QUIET_WAIT_S if len(serving) > 1 else ONLY_QUIET_WAIT_S
            if waited < limit:
                return None  # the chosen worker takes no other requests, so these streams are its last ones
            if not message.received:
                text = (
                    f"A worker of model {message.model!r} crashed with the request, and each other worker has streams "
                    f"that cannot move to another one, for more than {limit:g} s."
                )
                raise Overloaded(text, retry_after=limit)
        others = [one for one in active.at(chosen) if isinstance(one, Placement)]
        gone = [one for one in others if one.leave()]
        self._gone += gone  # the instance has no place for the suspect before the load of these requests is given back
        placement = desk.place(key, message)
        if placement is not None:
            placement.shared, placement.made_room, self._gone = len(gone) < len(others), self._gone, []
        return placement

    def _acquit(self, suspect: Waiting) -> None:
        """Have the dispatcher place a suspect as an ordinary request."""
        suspect.message.alone, suspect.message.again = False, True
        self._dispatcher.queue(self._key, suspect.message, suspect.turn)

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self.serve()
