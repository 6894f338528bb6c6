"""Requests whose worker crashed or hung, tried again one at a time, each alone on one worker.

One of them may be the cause. If it ends another worker while it is alone there, it is. The others then go on as usual,
except for requests without an answer. More than one request may crash workers, so requests without an answer are tried
alone too, as many as the time allows. A second cause that was not tried alone costs one more worker.

A worker whose other streams cannot move to another worker is no place for a trial: a crash would end these streams,
and would convict no request. The trial goes to a worker without such streams, or waits until one has none.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf

from dynamod.message.errors import RequestError
from dynamod.router.active import ActiveLoad
from dynamod.router.placement import Acquire, Placement

GATHER = 0.005
"""Seconds in which the requests of one worker come together, so that the most suspicious one is the first."""

QUIET_WAIT_S = 60.0
"""Seconds for which a trial waits for a worker without streams that stay, while other workers take requests."""

ONLY_QUIET_WAIT_S = 10.0
"""The same where all other requests wait too, because no other worker is there: less than their clock for a place."""

QUIET_LOOK_S = 0.05
"""Seconds between looks whether the streams that stay have ended."""

MAX_KEPT = 8
"""Suspects without an answer that are still tried alone after another one was convicted, whatever time that takes."""

KEPT_S = 10.0
"""Seconds behind a conviction in which further suspects without an answer are tried alone: less than their clock for a
place."""


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


@dataclass(slots=True, order=True)
class Waiting:
    """A request that waits for its place. The lowest rank is served first.

    `since`: start of the wait. `until`: end of the wait of a suspect, which goes on without a trial then. Both are
    seconds of the loop's clock.
    """

    rank: tuple[int, int]
    message: Acquire = field(compare=False)
    turn: asyncio.Future[Placement] = field(compare=False)
    since: float = field(compare=False, default=0.0)
    until: float = field(compare=False, default=inf)


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


class Isolation:
    """The suspects of one model and pool; who has got least of its answer is tried first, of those who came last.

    `place(message, instance, waited)`: a place for it at that instance alone, or at another one if that is not for it;
    None when it has to wait, which it has for `waited` seconds. What it raises is the request's error.
    `acquit(message, turn)`: it goes on as an ordinary request.
    """

    def __init__(
        self,
        place: Callable[[Acquire, int | None, float], Placement | None],
        acquit: Callable[[Acquire, asyncio.Future[Placement]], None],
        budget: RetryBudget,
    ) -> None:
        self._place, self._acquit, self._budget = place, acquit, budget
        self._loop = asyncio.get_running_loop()
        self._suspects: list[Waiting] = []
        self._arrivals = count()
        self._trial: Placement | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.instance: int | None = None
        """The worker of the trial, which takes no other requests."""
        self.restarting = False
        """No worker is left; a suspect waits for one that is started again."""

    @property
    def over(self) -> bool:
        """Whether nobody is tried, or waits for it."""
        return self._trial is None and not self._suspects

    def __len__(self) -> int:
        return sum(not suspect.turn.done() for suspect in self._suspects)

    def add(self, message: Acquire) -> asyncio.Future[Placement]:
        """A request to be tried alone; the future is its place."""
        turn: asyncio.Future[Placement] = self._loop.create_future()
        rank = (message.received, -next(self._arrivals))
        insort(self._suspects, Waiting(rank, message, turn, self._loop.time()))
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
        while self._suspects and ((first := self._suspects[0]).turn.done() or now > first.until):
            del self._suspects[0]
            if not first.turn.done():  # else its client has left, or its clock has passed
                self._acquit(first.message, first.turn)
        if not self._suspects:
            self.instance = None
            return
        if wait := self._budget.wait():
            self._later(wait)
        if self._timer is None:
            self._try(self._suspects[0])

    def _release(self) -> None:
        """One suspect was convicted: those with an answer go on, and later those for which the time is too short."""
        waiting = [suspect for suspect in self._suspects if not suspect.turn.done()]
        self._suspects = [suspect for suspect in waiting if not suspect.message.received]  # in front of the others
        for suspect in self._suspects[MAX_KEPT:]:
            suspect.until = self._loop.time() + KEPT_S
        for suspect in waiting[len(self._suspects) :]:
            self._acquit(suspect.message, suspect.turn)

    def _try(self, suspect: Waiting) -> None:
        try:
            placement = self._place(suspect.message, self.instance, self._loop.time() - suspect.since)
        except RequestError as error:
            suspect.turn.set_exception(error)
            self._later(0.0)
            return
        if placement is not None:
            self._budget.spend()
            self._trial = placement
            del self._suspects[0]
            suspect.turn.set_result(placement)
        elif self.instance is not None or self.restarting:
            self._later(QUIET_LOOK_S)

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self.serve()
