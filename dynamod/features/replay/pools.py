"""A replay with prefill workers: prompts that they compute come over, block by block, to the worker that answers."""

import random as random_module
from collections import Counter
from functools import partial

import msgspec

from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.scheduler import Sequence as Job
from dynamod.engine.mocker.scheduler import Step
from dynamod.engine.mocker.timing import Timing
from dynamod.features.prefill.decision import PrefillDecision, decide, state_of, way_of
from dynamod.features.prefill.settings import PrefillSettings
from dynamod.message.discovery import Instance
from dynamod.router.decision import Decision
from dynamod.router.router import Prompt, Router, RouterSettings

from .simulate import Replay, Request, Worker


class PoolReplay(Replay):
    """`workers` answer; `prefill` workers compute prompts, by the decision of `disagg`.

    `transfer`: milliseconds for each token that comes over, after the last one that was computed.
    """

    def __init__(
        self,
        workers: int,
        prefill: int,
        machine: SchedulerSettings,
        timing: Timing,
        settings: RouterSettings,
        *,
        disagg: PrefillSettings = PrefillSettings(),
        transfer: float = 0.0,
        seed: int = 0,
        blind: bool = False,
    ) -> None:
        super().__init__(workers, machine, timing, settings, seed, blind)
        self._settings, self._transfer = disagg, transfer
        clock = lambda: self._now / 1000  # noqa: E731
        random = random_module.Random(seed)
        self.prefill_router = Router("prefill", machine.block_size, settings, random, now=clock, wall=clock)
        self._sources = [Worker(number, machine, timing, self.prefill_router) for number in range(prefill)]
        self._source_instances = [Instance("replay", "prefill", "generate", number, {}) for number in range(prefill)]
        self.reasons: Counter[str] = Counter()
        self.moved = 0

    def _placed(self, request: Request, prompt: Prompt, decision: Decision) -> None:
        found = self._where(request, prompt, decision)
        there = self.prefill_router.decide(prompt, self._source_instances) if found.remote else None
        self.reasons[found.reason] += 1
        if there is None:
            self._answer(request)
            return
        self.router.prefill_completed(request.number)  # it is no load there
        self.prefill_router.started(request.number, there, prompt)
        source, blocks = self._sources[there.chosen], self._moving(request)
        source.requests += 1
        source.scheduler.add(Job(request, blocks, len(blocks) * self._machine.block_size, 0, lambda _index: None))
        self._kick(source)

    def _where(self, request: Request, prompt: Prompt, decision: Decision) -> PrefillDecision:
        active, machine = self.router.state.active, self._machine
        loads = [self.prefill_router.state.active.of(one.number) for one in self._sources]
        use = request.worker.scheduler.pool.active / machine.num_gpu_blocks
        here = active.of(request.worker.number)
        published = [self.prefill_router.state.loads.get(one.number) for one in self._sources]
        way = way_of(self.router.state.loads.get(request.worker.number), published, machine.block_size)
        cached = decision.overlap * machine.block_size
        return decide(self._settings, state_of(prompt.tokens, cached, here, loads, use, way=way))

    def _moving(self, request: Request) -> tuple[int, ...]:
        """Blocks that come over: all but what the last token lies in."""
        return request.arrival.blocks[: (request.arrival.length - 1) // self._machine.block_size]

    def _step_ends(self, worker: Worker, step: Step) -> None:
        if worker not in self._sources:
            super()._step_ends(worker, step)
            return
        worker.busy = False
        for job in step.finished:
            self.prefill_router.prefill_completed(job.owner.number)
            here = job.owner.worker.scheduler.pool.cached_prefix(job.blocks)
            tokens = (len(job.blocks) - here) * self._machine.block_size
            self.moved += tokens
            self._measured(worker, tokens * self._transfer)
            self._at(self._now + tokens * self._transfer, partial(self._come, job.owner))
        self._kick(worker)

    def _measured(self, worker: Worker, ms: float) -> None:
        """The worker publishes what prompts take on their way, as the workers of a system do."""
        load = self.prefill_router.state.loads[worker.number]
        before = load.move_ms or ms
        self.prefill_router.state.apply(
            worker.number, (msgspec.structs.replace(load, move_ms=before + (ms - before) / 4),)
        )

    def _come(self, request: Request) -> None:
        """The blocks are at the worker that answers, as far as it has room."""
        self.prefill_router.finished(request.number)
        scheduler, blocks = request.worker.scheduler, self._moving(request)
        here = scheduler.pool.cached_prefix(blocks)
        held = list(blocks[:here])
        if not scheduler.pool.take(held):
            held, blocks = [], ()
        for block in blocks[here:]:
            if not scheduler.insert(held[-1] if held else None, block):
                break
            held.append(block)
        scheduler.pool.give_back(held)
        self._answer(request)
