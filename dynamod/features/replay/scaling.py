"""A replay whose workers come and go as a planner says.

They take time to start, and end what they have before they go.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.scheduler import Step
from dynamod.engine.mocker.timing import Timing
from dynamod.features.planner.observation import Observation, StepSample, WorkerLoad
from dynamod.message.discovery import Instance
from dynamod.router.decision import Decision
from dynamod.router.router import Prompt, RouterSettings

from .simulate import Outcome, Replay, Request, Worker
from .trace import Arrival

Plan = Callable[[Observation], int | None]
"""How many workers there should be; None: as many as there are, or are starting."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """`first` workers are there at the beginning, never more than `most`. `startup`, `tick`: seconds."""

    first: int
    most: int
    startup: float
    tick: float = 5.0


class Moment(NamedTuple):
    """Workers at a tick: seconds; ready, and those with the ones that start."""

    at: float
    ready: int
    expected: int


class ScalingReplay(Replay):
    """`hours`: of all workers, from the order to start them until they have gone. `curve`: how many there were."""

    def __init__(
        self,
        machine: SchedulerSettings,
        timing: Timing,
        settings: RouterSettings,
        scaling: Scaling,
        plan: Plan,
        seed: int = 0,
    ) -> None:
        super().__init__(scaling.first, machine, timing, settings, seed)
        self._scaling, self._plan = scaling, plan
        self._ready = {worker.number for worker in self._workers}
        self._starting: list[Worker] = []
        self._draining: set[int] = set()
        self._since = dict.fromkeys(self._ready, 0.0)
        self._waiting: deque[tuple[Arrival, bool]] = deque()  # for the first worker
        self._arrived: list[int] = []
        self._steps: dict[int, list[StepSample]] = {}
        self._open, self._end = 0, 0.0
        self.hours = 0.0
        self.curve: list[Moment] = []

    def run(self, arrivals: Sequence[Arrival], *, keep_decisions: bool = False) -> Outcome:
        """As `Replay.run`. The last ticks are those before the last answer has ended."""
        self._open = len(arrivals)
        self._at(self._scaling.tick * 1000, self._tick)
        return super().run(arrivals, keep_decisions=keep_decisions)

    def _arrive(self, arrival: Arrival, keep: bool) -> None:
        if self._instances:
            super()._arrive(arrival, keep)
        else:
            self._waiting.append((arrival, keep))

    def _placed(self, request: Request, prompt: Prompt, decision: Decision) -> None:
        self._arrived.append(max(1, prompt.tokens - decision.overlap * self._machine.block_size))
        super()._placed(request, prompt, decision)

    def _began(self, worker: Worker, step: Step) -> None:
        sample = StepSample(step.prefilled, step.context, step.ms / 1000)
        self._steps.setdefault(worker.number, []).append(sample)

    def _step_ends(self, worker: Worker, step: Step) -> None:
        super()._step_ends(worker, step)
        self._open -= len(step.finished)
        if worker.number in self._draining and worker.scheduler.idle:
            self._draining.discard(worker.number)
            self._ended(worker.number)
        if not self._open:
            self._end = self._now
            self.hours += sum(self._now - since for since in self._since.values()) / 3.6e6

    def _sum_up(self) -> None:
        self._now = self._end  # a tick may have come after it
        super()._sum_up()

    def _ended(self, number: int) -> None:
        self.hours += (self._now - self._since.pop(number)) / 3.6e6
        self.router.state.forget(number)

    def _tick(self) -> None:
        if not self._open:
            return
        loads = tuple(self._load(self._workers[number]) for number in sorted(self._ready))
        arrived, self._arrived = tuple(self._arrived), []
        seen = Observation(now=self._now / 1000, ready=loads, starting=len(self._starting), arrived=arrived)
        target = self._plan(seen)
        if target is not None:
            self._scale(min(target, self._scaling.most))
        self.curve.append(Moment(self._now / 1000, len(self._ready), len(self._ready) + len(self._starting)))
        self._at(self._now + self._scaling.tick * 1000, self._tick)

    def _load(self, worker: Worker) -> WorkerLoad:
        scheduler, size = worker.scheduler, self._machine.block_size
        return WorkerLoad(
            queued_prefill=sum(one.total for one in scheduler.waiting),
            running_prefill=sum(max(0, one.total - one.computed) for one in scheduler.running),
            context=scheduler.pool.active * size,
            capacity=self._machine.num_gpu_blocks * size,
            steps=tuple(self._steps.pop(worker.number, ())),
        )

    def _scale(self, target: int) -> None:
        expected = len(self._ready) + len(self._starting)
        for _ in range(target - expected):
            worker = Worker(len(self._workers), self._machine, self._timing, self.router)
            self._workers.append(worker)
            self._since[worker.number] = self._now
            self._starting.append(worker)
            self._at(self._now + self._scaling.startup * 1000, partial(self._started, worker))
        for _ in range(expected - target):
            if self._starting:
                self._ended(self._starting.pop().number)
            else:
                self._drain(min(self._ready, key=lambda one: (self.router.state.active.of(one).requests, -one)))

    def _drain(self, number: int) -> None:
        self._ready.discard(number)
        self._instances = [one for one in self._instances if one.instance_id != number]
        if self._workers[number].scheduler.idle:
            self._ended(number)
        else:
            self._draining.add(number)

    def _started(self, worker: Worker) -> None:
        if worker not in self._starting or not self._open:
            return  # it was not needed any more
        self._starting.remove(worker)
        self._ready.add(worker.number)
        self._instances = [*self._instances, Instance("replay", "worker", "generate", worker.number, {})]
        waiting, self._waiting = self._waiting, deque()
        for arrival, keep in waiting:
            self._arrive(arrival, keep)
