"""One data-parallel rank of the mocker: a scheduler of its own with blocks of its own, stepped in real time."""

import asyncio
from collections.abc import Callable, Sequence

from dynamod.kvcache.pool import PoolStatistics
from dynamod.message.kv_events import Removed, Stored

from .arguments import MockerArguments
from .scheduler import Scheduler
from .scheduler import Sequence as Scheduled
from .stream import Stream
from .timing import TIMINGS

_BEHIND = 0.1
"""Seconds that the steps may catch up when the process was held up; a real engine would have lost them."""


class Rank:
    """`tell` hears of blocks as they come and go; `hand_out` gets the sequences that have a new token."""

    def __init__(
        self,
        arguments: MockerArguments,
        tell: Callable[[Stored | Removed], None],
        hand_out: Callable[[list[Scheduled]], None],
    ) -> None:
        self._arguments, self._tell, self._hand_out = arguments, tell, hand_out
        self.scheduler = Scheduler(arguments, TIMINGS[arguments.timing], stored=self._stored, removed=self._removed)
        self._work = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._since: float | None = None
        self.steps = self._step_tokens = 0

    def add(self, sequence: Scheduled) -> None:
        """Queue a request."""
        self.scheduler.add(sequence)
        self._work.set()

    def missing(self, names: Sequence[int], length: int) -> int:
        """Tokens of a prompt of `length` tokens that are not in this rank's cache. `names`: its full blocks."""
        return length - self.scheduler.pool.cached_prefix(names) * self._arguments.block_size

    @property
    def queued(self) -> int:
        """Tokens of the requests that wait for admission."""
        return sum(sequence.total for sequence in self.scheduler.waiting)

    async def run(self) -> None:
        """Step for ever."""
        ratio, now, scheduler = self._arguments.speedup_ratio, self._now, self.scheduler
        due = now()
        while True:
            if scheduler.idle:
                self._work.clear()
                await self._work.wait()
                due = now()
            self._since = now()
            step = scheduler.step()
            self.steps += 1
            self._step_tokens = step.prefilled + len(step.tokens)
            if ratio:
                due = max(due, now() - _BEHIND) + step.ms / 1000 / ratio
                await asyncio.sleep(max(0.0, due - now()))
            else:
                await asyncio.sleep(0)
            self._since = None
            self._hand_out(step.tokens)

    @property
    def in_step(self) -> tuple[float, int] | None:
        """Seconds since the step began and the tokens that it computes; None between steps."""
        return None if self._since is None else (self._now() - self._since, self._step_tokens)

    @property
    def blocks(self) -> PoolStatistics:
        """The pool's numbers."""
        return self.scheduler.pool.statistics()

    def _stored(self, parent: int | None, blocks: Sequence[int]) -> None:
        acting = self.scheduler.acting
        assert acting is not None
        stream: Stream = acting.owner
        self._tell(Stored(parent, tuple(blocks), stream.locals_of(blocks)))

    def _removed(self, blocks: Sequence[int]) -> None:
        self._tell(Removed(tuple(blocks)))
