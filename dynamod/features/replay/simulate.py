"""The event loop of a replay: arrivals and engine iterations in the order of their virtual times.

The decisions are made by `router.Router` and the iterations by `engine.mocker.Scheduler`, the same objects that serve
real requests; only time is made up. Equal arrivals, settings and seeds give equal results to the last digit.
"""

import heapq
import random as random_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.scheduler import Scheduler, Step
from dynamod.engine.mocker.scheduler import Sequence as Job
from dynamod.engine.mocker.tiers import block_times
from dynamod.engine.mocker.timing import Timing
from dynamod.extension.installed import block_stores, overlap_sources
from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.kv_events import Load, Removed, Snapshot, TierEvent
from dynamod.router.decision import Decision
from dynamod.router.router import Prompt, Router, RouterSettings, RouterStatistics

from .trace import Arrival

_OUTPUT_NAMES = 1 << 63
"""Blocks that answers fill have names that no prompt of the trace has."""


class Served(NamedTuple):
    """A request that has been answered: milliseconds to its first token, between two tokens on average, and when it
    came.
    """

    ttft: float
    gap: float
    at: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What happened. Times in milliseconds, in the order in which they were measured. `served`: as requests end."""

    served: list[Served] = field(default_factory=list[Served])
    ttft: list[float] = field(default_factory=list[float])
    itl: list[float] = field(default_factory=list[float])
    e2e: list[float] = field(default_factory=list[float])
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    makespan: float = 0.0
    by_worker: list[int] = field(default_factory=list[int])
    router: RouterStatistics | None = None

    @property
    def reuse(self) -> float:
        """Share of the prompts' tokens that were found in a cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def goodput(self, ttft: float, gap: float) -> float:
        """Requests per second whose first token came within `ttft` and whose others came within `gap`, in ms."""
        good = sum(one.ttft <= ttft and one.gap <= gap for one in self.served)
        return good / (self.makespan / 1000 or 1.0)


@dataclass(slots=True, eq=False)
class Request:
    """One on its way. `first`, `last`: when its tokens came."""

    arrival: Arrival
    number: int
    worker: "Worker"
    first: float = 0.0
    last: float | None = None


class Worker:
    """A scheduler, of which the router hears at once."""

    def __init__(
        self, number: int, machine: SchedulerSettings, timing: Timing, router: Router, blind: bool = False
    ) -> None:
        self.number, self._router = number, router
        publish = (lambda _event: None) if blind else self._tier
        tiers = block_stores(machine.tiered).simulated(machine, publish) if machine.tiered else None
        self.scheduler = Scheduler(machine, timing, stored=self._stored, removed=self._removed, tiers=tiers)
        self.busy = False
        self.requests = 0
        times = [1000 * seconds for seconds in block_times(machine, timing)]
        router.state.apply(number, (Load(0, 0, 0, machine.num_gpu_blocks, 0.0, *times),))

    def _stored(self, parent: int | None, blocks: Sequence[int]) -> None:
        names = tuple(blocks)
        self._router.state.apply(self.number, (Snapshot(names, names),))  # here a block's name is its sequence hash

    def _tier(self, event: TierEvent) -> None:
        self._router.state.apply(self.number, (event,))

    def _removed(self, blocks: Sequence[int]) -> None:
        self._router.state.apply(self.number, (Removed(tuple(blocks)),))


class Replay:
    """One run. `blind`: routers do not hear of tiers."""

    def __init__(
        self,
        workers: int,
        machine: SchedulerSettings,
        timing: Timing,
        settings: RouterSettings,
        seed: int = 0,
        blind: bool = False,
    ) -> None:
        self._machine, self._timing = machine, timing
        self._now = 0.0
        self.router = Router(
            "replay",
            machine.block_size,
            settings,
            random_module.Random(seed),
            now=lambda: self._now / 1000,
            wall=lambda: self._now / 1000,
            sources=overlap_sources(),
        )
        self._workers = [Worker(number, machine, timing, self.router, blind) for number in range(workers)]
        self._instances = [Instance("replay", "worker", "generate", number, {}) for number in range(workers)]
        self._names = count(_OUTPUT_NAMES)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.outcome = Outcome()
        self.decisions: list[Decision] = []

    def run(self, arrivals: Sequence[Arrival], *, keep_decisions: bool = False) -> Outcome:
        """Replay all arrivals to their ends. Raises UserError for a prompt that no worker can hold."""
        longest = max(arrivals, key=lambda one: one.length)
        if not Scheduler(self._machine, self._timing).fits(longest.length):
            blocks = -(-longest.length // self._machine.block_size) + 1
            raise UserError(
                f"a prompt of {longest.length} tokens does not fit {self._machine.num_gpu_blocks} blocks",
                f"give --blocks {blocks * 2} or more",
            )
        for one in arrivals:
            self._at(one.at, partial(self._arrive, one, keep_decisions))
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        self._sum_up()
        return self.outcome

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _arrive(self, arrival: Arrival, keep: bool) -> None:
        number = next(self._order)
        prompt = Prompt(f"r{number}", arrival.length, arrival.blocks)
        decision = self.router.decide(prompt, self._instances)
        assert decision is not None
        if keep:
            self.decisions.append(decision)
        self.router.started(number, decision, prompt)
        worker = self._workers[decision.chosen]
        worker.requests += 1
        self._placed(Request(arrival, number, worker), prompt, decision)

    def _placed(self, request: Request, prompt: Prompt, decision: Decision) -> None:
        """A request comes to the worker that answers it."""
        self._answer(request)

    def _answer(self, request: Request) -> None:
        arrival, worker, names = request.arrival, request.worker, self._names
        worker.scheduler.add(Job(request, arrival.blocks, arrival.length, arrival.output, lambda _index: next(names)))
        self._kick(worker)

    def _kick(self, worker: Worker) -> None:
        if worker.busy or worker.scheduler.idle:
            return
        step = worker.scheduler.step()
        self._began(worker, step)
        worker.busy = True
        self._at(self._now + step.ms, partial(self._step_ends, worker, step))

    def _began(self, worker: Worker, step: Step) -> None:
        """An iteration has begun."""

    def _step_ends(self, worker: Worker, step: Step) -> None:
        worker.busy = False
        now, outcome = self._now, self.outcome
        for job in step.tokens:
            request: Request = job.owner
            if request.last is None:
                request.first = now
                outcome.ttft.append(now - request.arrival.at)
                self.router.prefill_completed(request.number)
            else:
                outcome.itl.append(now - request.last)
            request.last = now
        for job in step.finished:
            request = job.owner
            outcome.e2e.append(now - request.arrival.at)
            gap = (now - request.first) / max(1, job.generated - 1)
            outcome.served.append(Served(request.first - request.arrival.at, gap, request.arrival.at))
            self.router.finished(request.number)
        self._kick(worker)

    def _sum_up(self) -> None:
        outcome = self.outcome
        for worker in self._workers:
            outcome.prompt_tokens += worker.scheduler.prompt_tokens
            outcome.cached_tokens += worker.scheduler.cached_tokens
            outcome.preemptions += worker.scheduler.preemptions
            outcome.by_worker.append(worker.requests)
        outcome.output_tokens = len(outcome.ttft) + len(outcome.itl)
        outcome.makespan = self._now
        outcome.router = self.router.statistics()
