"""The loop of steps: decided by the scheduler on the event loop, computed in one thread, handed out token by token."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dynamod.kvcache.store import BlockStore
from dynamod.message import tokens
from dynamod.message.errors import EngineFailed
from dynamod.message.kv_events import Removed, Stored

from .handoff import Export, Shared
from .kv_cells import Operation, Sequence
from .model import Model, StepFailed, Work
from .request import Stream
from .sampling import Picked
from .scheduler import Row, Scheduler
from .sizing import StepBudget
from .stored import StoredExports
from .tiering import Tiering
from .transfers import Transfer

if TYPE_CHECKING:
    from .engine import LlamaCpp

log = logging.getLogger("dynamod.engine")

AHEAD = 0.03
"""Seconds: after a longer step the next one is not begun ahead. A new request would wait for it, and what the thread
waits between two steps, less than a millisecond, does not count then."""


class _Step(NamedTuple):
    """A step in the thread: its rows, the tokens it computes, and those it will have chosen."""

    rows: list[Row]
    tokens: int
    picked: Future[list[Picked | Exception]]


def _goes_on(sequence: Sequence) -> bool:
    return cast(Stream, sequence.owner).goes_on


class Steps:
    """`operations`: on cells, for the next step. `rows`: of the step that is computed now, or was the last.

    `computed`: tokens of all steps. `scheduler` is set by the engine before `run`. `stopped`: no step begins any more.
    """

    scheduler: Scheduler

    def __init__(self, engine: "LlamaCpp", budget: StepBudget) -> None:
        self._engine, self.budget = engine, budget
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="llamacpp")
        self.stopped = threading.Event()
        self.work = asyncio.Event()
        self.operations: list[Operation | Transfer] = []
        self._transfers = False  # among them
        self.rows: Seq[Row] = ()
        self.computed = 0
        self._tiering: Tiering | None = None
        self.stored: StoredExports | None = None

    async def open_tiers(self, model: Model, shared: Shared) -> BlockStore | None:
        """Make the tiers, where there are any and the model's cells can be exported. Raises UserError."""
        arguments, engine = self._engine.arguments, self._engine
        if model.ranges is None:
            if arguments.tiered:
                log.warning("llama.cpp: this model's KV cells cannot be exported by block, so it has no tiers")
            return None
        tiers: BlockStore | None = None
        if arguments.tiered:
            stores = engine.options.stores(arguments.tiered)
            tiers = await stores.open(arguments, engine.layout(), engine.publish)
        if tiers is not None:
            later, rate = asyncio.get_running_loop().call_later, lambda: self.budget.rate
            self._tiering = Tiering(tiers, shared, model.ranges, later, rate, self.go_on)
            self.scheduler.fetch = self._tiering.fetch
        self.stored = StoredExports(shared, model.ranges, tiers, self.go_on)
        return tiers

    def asked(self, sequence: Sequence) -> Sequence:
        """The blocks of a sequence count as asked for, for tiers."""
        if self._tiering is not None:
            self._tiering.ask(sequence)
        return sequence

    def published(self, event: Stored | Removed) -> None:
        """Publish a change of the cells' blocks; new blocks may be copied to tiers."""
        self._engine.publish(event)
        if self._tiering is not None and isinstance(event, Stored):
            self._tiering.copy(reversed(event.blocks))

    def transfer(self, transfer: Transfer) -> None:
        """Give it to the thread, with the next step or without one; its result is told on the loop."""
        transfer.told = functools.partial(_later, asyncio.get_running_loop(), transfer.told)
        self.operations.append(transfer)
        self.go_on()

    def go_on(self) -> None:
        """There is work for the thread besides tokens."""
        self._transfers = True
        self.work.set()

    async def run(self, model: Model) -> None:
        """While a step is computed the next one is already given to the thread, where it is known: each sequence gets
        one more token. So the thread does not wait until tokens have been handed out.
        """
        engine, scheduler, budget = self._engine, self.scheduler, self.budget
        now = asyncio.get_running_loop().time
        [clock] = engine.clocks
        step: _Step | None = None
        took = 0.0
        while True:
            if step is None:
                if scheduler.idle and not self._transfers:
                    self.work.clear()
                    await self.work.wait()
                if self.stopped.is_set():
                    return
                if scheduler.idle and not self._transfers:
                    continue
                step = self._begin(model, scheduler.plan(budget.chunk(scheduler.decoding)))
            ahead = scheduler.ahead(step.rows, _goes_on) if took < AHEAD else []
            following = self._begin(model, ahead) if ahead else None
            self.rows = rows = step.rows
            began = now()
            if rows and not scheduler.idle:  # else no request waits for it any more
                clock.begin(step.tokens)
            try:
                picked = await asyncio.wrap_future(step.picked)
            except Exception as error:
                clock.end()
                if following is not None:
                    with contextlib.suppress(Exception):  # it needs the tokens of this one
                        await asyncio.wrap_future(following.picked)
                self._failed(rows, error)
                step = None
                continue
            took = now() - began
            budget.took(sum([row.count for row in rows if row.count > 1]), took)
            scheduler.commit(rows)
            if engine.stepped is not None and rows and clock.computed >= clock.due:
                clock.due = clock.computed + engine.stepped(0)
            clock.end()
            self._hand_out([row for row in rows if row.last], picked)
            step = following

    def _begin(self, model: Model, rows: list[Row]) -> _Step:
        """Give a step to the thread, with what has to happen to the cells before."""
        if self._tiering is not None:
            self._tiering.pump()
        if self.stored is not None:
            self.stored.pump()
        work, operations = [_work(row) for row in rows], self.operations.copy()
        self.operations.clear()
        self._transfers = any(one is not None and one.pending for one in (self._tiering, self.stored))
        count = sum([row.count for row in rows])
        self.computed += count
        adapter = rows[0].sequence.adapter if rows else ""
        return _Step(rows, count, self.thread.submit(model.step, operations, work, adapter))

    def _failed(self, rows: Seq[Row], error: Exception) -> None:
        """A step could not be computed: the sequence at fault alone ends, the others are computed again."""
        if isinstance(error, StepFailed):
            log.warning("%s (%d sequences)", error, len(rows))
        else:
            log.error("llama.cpp: a step failed", exc_info=error)
        for sequence in self.scheduler.failed(list(rows)):
            self._end(sequence, error)

    def _end(self, sequence: Sequence, error: Exception) -> None:
        """One answer cannot continue. What llama.cpp says of it is for the log, not for clients."""
        owner: Stream | Export = sequence.owner
        request = owner.request.request_id
        log.warning("llama.cpp: request %s failed: %s", request, error)
        why = f"{self._engine.name} could not compute request {request}; the worker's log says why under this id"
        if isinstance(owner, Export):
            owner.failed(EngineFailed(why))
        else:
            owner.reply.failed("EngineFailed", why)

    def _hand_out(self, rows: list[Row], picked: list[Picked | Exception]) -> None:
        """The hot loop: once per token."""
        engine, scheduler = self._engine, self.scheduler
        for row, one in zip(rows, picked, strict=True):
            sequence = row.sequence
            if sequence.gone:  # its reader has left while this was computed
                continue
            stream: Stream = sequence.owner
            if isinstance(one, Exception):
                scheduler.remove(sequence)
                self._end(sequence, one)
                continue
            engine.tokens += 1
            sequence.ids.append(one.index)
            first, finish = stream.take(one.index)
            if first:
                engine.prefill_completed(stream.reply)
                stream.reply.cached_tokens(min(sequence.found, tokens.count(stream.request.token_ids)))
                if sequence.scores is not None:
                    stream.reply.prompt_logprobs(*sequence.scores.result())
            if finish is not None:
                scheduler.remove(sequence)
            stream.send(one, finish)


def _later(loop: asyncio.AbstractEventLoop, told: Callable[[bytes | Exception], object], result: Any) -> None:
    """In the thread. A loop that is closed needs nothing any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(told, result)


def _work(row: Row) -> Work:
    """What the thread needs to know: it does not look at sequences, which the loop may end meanwhile."""
    sequence, start = row.sequence, row.start
    sampler = sequence.owner.sampler if row.last else None
    return Work(sequence.slot, start, sequence.ids[start : start + row.count], sampler, sequence.scores)
