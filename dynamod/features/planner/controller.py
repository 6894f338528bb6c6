"""A planner of one pool: how many workers it should have, decided at each tick. Pure: the caller has the clock."""

import math
from collections import deque
from typing import Literal

import msgspec

from dynamod.message.discovery import PREFILL

from .demand import Arrivals
from .laws import ORIGINAL, Estimate, Thresholds, by_queue, by_threshold, needed
from .observation import Observation
from .settings import PlannerSettings
from .steps import StepTimes

PATIENCE = 0.5
"""Share of the time to the first token for which prompts may be queued, before the queue counts on its own."""

CLEAR = 10.0
"""Seconds in which a queue should be worked off, and a quarter of the time that workers take to start."""

Reason = Literal[
    "no_data",
    "no_change",
    "scale_up",
    "scale_up_queue",
    "scale_down",
    "hold",
    "limit",
    "wanted",
    "idle",
    "switch",
]


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A decision. `target`: workers that should be there; `expected`: that were, or were starting.

    `needed`: by what comes; `forecast`: by what will come while workers start; `queue`: to work off what waits; `kept`:
    the most that was needed lately; `recent`: within `window`. `estimate`: what requests would see with `needed`.
    """

    now: float
    expected: int
    target: int
    reason: Reason
    needed: int = 0
    forecast: int = 0
    queue: int = 0
    kept: int = 0
    recent: int = 0
    work: float = 0.0
    growth: float = 1.0
    estimate: Estimate | None = None


class Controller:
    """`kind`: of the workers.

    `startup`: seconds that they take to start, as far as is known; set by the code that measures it.
    """

    def __init__(self, settings: PlannerSettings, kind: str = "") -> None:
        self.settings, self._kind = settings, kind
        self.startup = settings.startup
        self._times = StepTimes()
        self._arrivals = Arrivals(settings.adjustment_interval)
        self._needs: deque[tuple[float, int]] = deque()
        self._needed_at: float | None = None  # when a request last needed the pool

    def tick(self, seen: Observation) -> Tick:
        """Decide."""
        if seen.busy or self._needed_at is None:
            self._needed_at = seen.now if seen.busy or seen.expected else -math.inf
        self._times.learn([step for worker in seen.ready for step in worker.steps])
        if self.settings.optimization_target == "sla":
            return self._by_sla(seen)
        return self._by_threshold(seen)

    def _by_threshold(self, seen: Observation) -> Tick:
        settings, target = self.settings, self.settings.optimization_target
        if target == "load" and self._kind == PREFILL:
            limits = Thresholds(settings.prefill_queue_scale_up_threshold, settings.prefill_queue_scale_down_threshold)
            change = by_queue(seen.ready, limits)
        else:
            own = Thresholds(settings.decode_kv_scale_up_threshold, settings.decode_kv_scale_down_threshold)
            change = by_threshold(seen.ready, ORIGINAL.get(target, own))
        return self._bounded(seen, seen.expected + (0 if seen.starting else change))

    def _by_sla(self, seen: Observation) -> Tick:
        settings, times = self.settings, self._times
        if not times.known:
            return self._bounded(seen, seen.expected, reason="no_data")
        self._arrivals.add([times.prefill(tokens) for tokens in seen.arrived], seen.context)
        demand, most = self._arrivals.demand(settings.window), settings.max_gpu_budget
        growth = self._growth()
        found, later = needed(demand, times, settings, most), 0
        if growth > 1:
            later = needed(demand.grown(growth), times, settings, most).workers
        need = found.workers if demand.rate else 0
        kept, recent = self._keep(seen.now, max(need, later))
        queue = self._queue(seen, demand.work)
        target = max(need, later, queue, min(seen.expected, kept))
        facts = Tick(
            now=seen.now,
            expected=seen.expected,
            target=target,
            reason="no_change",
            needed=need,
            forecast=later,
            queue=queue,
            kept=kept,
            recent=recent,
            work=demand.work,
            growth=growth,
            estimate=found,
        )
        return self._bounded(seen, target, facts)

    def _growth(self) -> float:
        interval = self.settings.adjustment_interval
        if self.startup <= interval:
            return 1.0
        return self._arrivals.growth(self.startup, self.settings.load_predictor)

    def _keep(self, now: float, need: int) -> tuple[int, int]:
        """The most that was needed lately: workers that would have to be started again soon are not given up.

        The second value is the most of the last `window`: workers that would be started again at once.
        """
        hold, window = self._hold, self.settings.window
        self._needs.append((now, need))
        while self._needs[0][0] < now - max(hold, window):
            self._needs.popleft()
        kept, recent = (max(need for at, need in self._needs if at >= now - since) for since in (hold, window))
        return kept, recent

    @property
    def _hold(self) -> float:
        """Seconds for which a worker is kept after it was needed: longer for workers that start slowly."""
        hold, window, startup = self.settings.hold, self.settings.window, self.startup
        return max(startup, (window + startup) / 2) if hold is None else hold

    def _idle(self, now: float) -> bool:
        """Whether no request needs the pool, now or lately, so that it may have no workers."""
        since = self._needed_at if self._needed_at is not None else now
        return not self.settings.min_endpoint and now - since >= max(self._hold, self.settings.window)

    def _queue(self, seen: Observation, work: float) -> int:
        """Workers that clear the queue, if it is longer than first tokens may take; else 0."""
        waiting = self._times.token * seen.queued
        if waiting <= PATIENCE * self.settings.ttft / 1000 * max(1, len(seen.ready)):
            return 0
        return math.ceil(work + waiting / (CLEAR + self.startup / 4))

    def _bounded(self, seen: Observation, target: int, facts: Tick | None = None, reason: Reason = "no_change") -> Tick:
        settings, idle = self.settings, self._idle(seen.now)
        bounded = 0 if idle else min(max(target, settings.min_endpoint, 1), settings.max_gpu_budget)
        facts = facts or Tick(now=seen.now, expected=seen.expected, target=bounded, reason=reason)
        lately = max(facts.needed, facts.forecast)
        if idle:
            reason = "idle"
        elif not seen.expected and seen.wanted:
            reason = "wanted"
        elif bounded > seen.expected:
            reason = "scale_up_queue" if facts.queue >= bounded > lately else "scale_up"
        elif bounded < seen.expected:
            reason = "scale_down"
        elif bounded == settings.max_gpu_budget and facts.estimate is not None and facts.estimate.late > settings.late:
            reason = "limit"
        elif facts.kept >= bounded > max(lately, facts.queue, settings.min_endpoint):
            reason = "hold"
        return msgspec.structs.replace(facts, target=bounded, reason=reason)
