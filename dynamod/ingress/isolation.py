"""Requests whose worker crashed or hung, tried again one at a time, each alone on one worker.

One of them may be the cause. If it ends another worker while it is alone there, it is: the others then go on as usual.
"""

import asyncio
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from dynamod.message.errors import RequestError
from dynamod.router.placement import Acquire, Placement

GATHER = 0.005
"""Seconds in which the requests of one worker come together, so that the most suspicious one is the first."""


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
    """A request that waits for its place. The lowest rank is served first."""

    rank: tuple[int, int]
    message: Acquire = field(compare=False)
    turn: asyncio.Future[Placement] = field(compare=False)


class Isolation:
    """The suspects of one model and pool; who has got least of its answer is tried first, of those who came last.

    `place(message, instance)`: give it a place at that instance alone, or at another if that one is not for it; None
    when it has to wait. What it raises is the request's error. `acquit(message, turn)`: it goes on as an ordinary
    request.
    """

    def __init__(
        self,
        place: Callable[[Acquire, int | None], Placement | None],
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

    @property
    def over(self) -> bool:
        """Whether nobody is tried, or waits for it."""
        return self._trial is None and not self._suspects

    def __len__(self) -> int:
        return sum(not suspect.turn.done() for suspect in self._suspects)

    def add(self, message: Acquire) -> asyncio.Future[Placement]:
        """A request to be tried alone; the future is its place."""
        turn: asyncio.Future[Placement] = self._loop.create_future()
        insort(self._suspects, Waiting((message.received, -next(self._arrivals)), message, turn))
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
                suspects, self._suspects = self._suspects, []
                self.instance = None
                for suspect in suspects:
                    if not suspect.turn.done():
                        self._acquit(suspect.message, suspect.turn)
        while self._suspects and self._suspects[0].turn.done():
            del self._suspects[0]  # its client has left, or its clock has passed
        if not self._suspects:
            self.instance = None
            return
        if wait := self._budget.wait():
            self._later(wait)
        if self._timer is None:
            self._try(self._suspects[0])

    def _try(self, suspect: Waiting) -> None:
        try:
            placement = self._place(suspect.message, self.instance)
        except RequestError as error:
            suspect.turn.set_exception(error)
            self._later(0.0)
            return
        if placement is not None:
            self._budget.spend()
            self._trial = placement
            del self._suspects[0]
            suspect.turn.set_result(placement)

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self.serve()
