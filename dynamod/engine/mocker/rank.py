"""One data-parallel rank of the mocker: a scheduler of its own with blocks of its own, stepped in real time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from dynamod.message.kv_events import Removed, Stored

from ..base import StepClock
from .arguments import MockerArguments
from .output import Stream
from .scheduler import Scheduler
from .scheduler import Sequence as Scheduled
from .timing import TIMINGS

CATCH_UP = 0.1
"""Seconds that the steps may catch up when the process was held up; a real engine would have lost them."""

Publish = Callable[[Stored | Removed], None]


class Rank:
    """`publish` gets the events of its blocks; `hand_out` gets the sequences that have a new token."""

    def __init__(
        self, arguments: MockerArguments, publish: Publish, hand_out: Callable[[list[Scheduled]], None]
    ) -> None:
        self._arguments, self._publish, self._hand_out = arguments, publish, hand_out
        self.scheduler = Scheduler(arguments, TIMINGS[arguments.timing], stored=self._stored, removed=self._removed)
        self.clock = StepClock()
        self._work = asyncio.Event()

    def add(self, sequence: Scheduled) -> None:
        """Queue a request."""
        self.scheduler.add(sequence)
        self._work.set()

    def uncached(self, blocks: Sequence[int], length: int) -> int:
        """Tokens of a prompt of `length` tokens that are not in this rank's cache. `blocks`: its full blocks."""
        return length - self.scheduler.pool.cached_prefix(blocks) * self._arguments.block_size

    @property
    def queued(self) -> int:
        """Tokens of the requests that wait for admission."""
        return sum(sequence.total for sequence in self.scheduler.waiting)

    async def run(self) -> None:
        """Step for ever."""
        ratio, scheduler, clock = self._arguments.speedup_ratio, self.scheduler, self.clock
        now = asyncio.get_running_loop().time
        due = now()
        while True:
            if scheduler.idle:
                self._work.clear()
                await self._work.wait()
                due = now()
            step = scheduler.step()
            clock.begin(step.prefilled + len(step.tokens))
            if ratio:
                due = max(due, now() - CATCH_UP) + step.ms / 1000 / ratio
                await asyncio.sleep(max(0.0, due - now()))
            else:
                await asyncio.sleep(0)
            clock.end()
            self._hand_out(step.tokens)

    def _stored(self, parent: int | None, blocks: Sequence[int]) -> None:
        acting = self.scheduler.acting
        assert acting is not None
        stream: Stream = acting.owner
        self._publish(Stored(parent, tuple(blocks), stream.locals_of(blocks)))

    def _removed(self, blocks: Sequence[int]) -> None:
        self._publish(Removed(tuple(blocks)))


class RankUnion:
    """Events of several ranks as those of one worker: it has a block as long as one of its ranks has it."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._ranks: Counter[int] = Counter()  # that have a block

    def publish(self, event: Stored | Removed) -> None:
        """Take the event of one rank."""
        if isinstance(event, Stored):
            self._ranks.update(event.blocks)
            self._publish(event)
            return
        self._ranks.subtract(event.blocks)
        gone = tuple(block for block in event.blocks if not self._ranks[block])
        for block in gone:
            del self._ranks[block]
        if gone:
            self._publish(Removed(gone))
