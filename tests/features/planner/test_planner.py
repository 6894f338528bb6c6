"""How many workers a pool should have: pure, so time and load are made up."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.planner.controller import Controller, Tick
from dynamod.features.planner.demand import STEEPEST, Arrivals, Demand, by_filter
from dynamod.features.planner.laws import (
    FULLEST,
    MARGIN,
    ORIGINAL,
    Thresholds,
    by_queue,
    by_threshold,
    estimate,
    needed,
)
from dynamod.features.planner.observation import Observation, StepSample, WorkerLoad
from dynamod.features.planner.settings import PlannerSettings, settings_of
from dynamod.features.planner.steps import StepTimes
from dynamod.message.errors import UserError

PROMPT, TOKEN, DECODE, KV = 0.02, 0.0001, 0.005, 2e-8
"""Of the engine of these tests, in seconds."""


def step(prefill: int, context: int) -> StepSample:
    seconds = (PROMPT + TOKEN * prefill if prefill else 0) + (DECODE + KV * context if context else 0)
    return StepSample(prefill, context, seconds)


STEPS = tuple(step(prefill, context) for prefill in (0, 100, 2000, 8000) for context in (0, 1000, 400_000))


def times() -> StepTimes:
    made = StepTimes()
    made.learn(STEPS)
    return made


def loads(count: int, queued: int = 0, context: int = 1000, steps: Sequence[StepSample] = STEPS) -> Any:
    return tuple(
        WorkerLoad(queued_prefill=queued, context=context, capacity=1_000_000, steps=tuple(steps)) for _ in range(count)
    )


class Pool:
    """A pool that does at once, or after `startup`, what the controller says; the load comes as the test says."""

    def __init__(self, startup: float = 0.0, workers: int = 1, **settings: Any) -> None:
        self.controller = Controller(PlannerSettings(startup=startup, **settings))
        self.startup, self.workers, self.now = startup, workers, 0.0
        self.starting: list[float] = []
        self.draw = random.Random(1)

    def tick(self, per_second: float, tokens: int = 1000, queued: int = 0) -> Tick:
        self.now += 5
        self.workers += sum(at <= self.now for at in self.starting)
        self.starting = [at for at in self.starting if at > self.now]
        arrived = tuple(tokens for _ in range(round(5 * per_second)))
        seen = Observation(
            now=self.now, ready=loads(self.workers, queued), starting=len(self.starting), arrived=arrived
        )
        tick = self.controller.tick(seen)
        assert tick.expected == seen.expected
        for _ in range(tick.target - tick.expected):
            self.starting.append(self.now + self.startup)
        for _ in range(tick.expected - tick.target):
            if self.starting:
                self.starting.pop()
            else:
                self.workers -= 1
        return tick


def test_step_times_are_learned() -> None:
    found = times()
    assert found.known
    assert found.prefill(3000) == pytest.approx(PROMPT + 3000 * TOKEN, rel=1e-3)
    assert found.between(100_000) == pytest.approx(DECODE + 100_000 * KV, rel=1e-3)
    nothing = StepTimes()
    nothing.learn(())
    assert not nothing.known


def test_newer_steps_count_more() -> None:
    found = times()
    for _ in range(300):
        found.learn([one._replace(seconds=2 * one.seconds) for one in STEPS])
    assert found.prefill(3000) == pytest.approx(2 * (PROMPT + 3000 * TOKEN), rel=0.02)


rates = st.floats(0.1, 50)
services = st.floats(0.01, 1.0)


@given(rates, services, st.floats(1.0, 8.0), st.floats(1.0, 10.0), st.floats(0, 1e6))
def test_more_workers_never_make_it_worse(rate: float, service: float, spread: float, bursts: float, kv: float) -> None:
    demand = Demand(rate, service, service**2 * spread, bursts, kv)
    found = [estimate(demand, times(), workers, 2.0) for workers in range(1, 20)]
    for fewer, more in pairwise(found):
        assert more.busy < fewer.busy
        assert more.late <= fewer.late + 1e-12
        assert more.gap <= fewer.gap
        assert 0 <= more.late <= 1


@given(rates, services, st.floats(1.0, 8.0), st.floats(0.02, 0.5), st.integers(1, 30))
def test_the_fewest_that_are_enough(rate: float, service: float, spread: float, late: float, most: int) -> None:
    demand, settings = (
        Demand(rate, service, service**2 * spread, 1.0, 0.0),
        PlannerSettings(late=late, max_gpu_budget=most),
    )
    found = needed(demand, times(), settings, most)
    enough = [n for n in range(1, most + 1) if estimate(demand, times(), n, 2.0).late <= late]
    assert found.workers == (enough[0] if enough else most)
    if enough:
        assert found.busy < FULLEST


def test_prompts_that_take_longer_than_their_time_are_all_late() -> None:
    assert estimate(Demand(1.0, 3.0, 9.0, 1.0, 0.0), times(), 8, 2.0).late == 1.0


def test_answers_need_workers_too() -> None:
    """Without any prompts to speak of."""
    settings = PlannerSettings(itl=10.0, max_gpu_budget=20)
    few, many = (needed(Demand(0.1, 0.001, 1e-6, 1.0, kv), times(), settings, 20) for kv in (50_000, 300_000))
    assert (few.workers, many.workers) == (1, 4)
    assert many.gap <= MARGIN * 0.010


def test_load_that_rises_and_falls() -> None:
    pool = Pool()
    assert [pool.tick(0.2).target for _ in range(12)][-1] == 1
    assert [pool.tick(25).target for _ in range(12)][-1] >= 4
    down = [pool.tick(0.2) for _ in range(12)]
    assert down[-1].target == 1
    assert {tick.reason for tick in down} == {"hold", "scale_down", "no_change"}, "it may come back"


def test_what_was_needed_is_kept_as_long_as_workers_take_to_start() -> None:
    pool = Pool(startup=120)
    for _ in range(40):
        pool.tick(25)
    held = [pool.tick(0.2).target for _ in range(40)]
    assert held[22] == held[0] > 1
    assert held[-1] == 1


def test_what_was_needed_within_the_window_is_known_whatever_is_kept() -> None:
    for startup, hold in ((120.0, None), (0.0, 0.0), (0.0, 300.0)):
        pool = Pool(startup=startup, hold=hold)
        most = max(pool.tick(25).recent for _ in range(40))
        ticks = [pool.tick(0.2) for _ in range(14)]
        assert ticks[0].recent == ticks[5].recent == most > 1
        assert ticks[-1].recent == 1


def test_a_queue_starts_workers_and_starting_ones_count() -> None:
    pool = Pool(startup=60, load_predictor="constant")
    for _ in range(6):
        pool.tick(1)
    first = pool.tick(1, queued=400_000)
    assert first.reason == "scale_up_queue"
    again = pool.tick(1, queued=400_000)
    assert again.target == first.target, "no more than once"


def test_load_that_grows_is_met_before_it_is_there() -> None:
    targets: dict[str, int] = {}
    for predictor in ("constant", "trend", "kalman"):
        pool = Pool(startup=60, load_predictor=predictor)
        targets[predictor] = [pool.tick(0.3 * number) for number in range(48)][-1].target
    assert min(targets["trend"], targets["kalman"]) > targets["constant"]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=100))
def test_a_trend_is_never_beyond_its_bounds(counts: list[int]) -> None:
    arrivals = Arrivals(5.0)
    for count in counts:
        arrivals.add([0.1] * count, 0)
    assert all(1.0 <= arrivals.growth(60.0, predictor) <= STEEPEST for predictor in ("trend", "kalman"))
    assert arrivals.growth(60.0, "constant") == 1.0
    demand = arrivals.demand(30.0)
    recent = counts[-6:]
    assert demand.rate == pytest.approx(sum(recent) / len(recent) / 5.0)


def test_steady_load_has_no_trend() -> None:
    arrivals = Arrivals(5.0)
    for _ in range(50):
        arrivals.add([0.1] * 7, 0)
    assert arrivals.growth(300.0) == 1.0
    assert arrivals.growth(300.0, "kalman") == pytest.approx(1.0)


def test_the_filter_follows_a_line() -> None:
    level, slope = by_filter([3 + 2 * number for number in range(50)])
    assert (level, slope) == (pytest.approx(101, rel=0.01), pytest.approx(2, rel=0.01))


def test_limits_hold() -> None:
    pool = Pool(min_endpoint=2, max_gpu_budget=3, workers=2)
    assert pool.tick(0).target == 2
    ticks = [pool.tick(200) for _ in range(10)]
    assert ticks[-1].target == 3
    assert ticks[-1].reason == "limit"
    assert [pool.tick(0).target for _ in range(20)][-1] == 2


def test_nothing_is_done_before_a_step_has_been_seen() -> None:
    controller = Controller(PlannerSettings())
    tick = controller.tick(Observation(now=5.0, ready=loads(3, steps=()), arrived=(9, 9)))
    assert (tick.target, tick.reason) == (3, "no_data")


def test_to_zero_where_that_is_allowed() -> None:
    pool = Pool(min_endpoint=0)
    pool.tick(1)
    assert [pool.tick(0).target for _ in range(20)][-1] == 0


def idle(controller: Controller, now: float, workers: int, **more: Any) -> Tick:
    return controller.tick(Observation(now=now, ready=loads(workers, context=0), **more))


@pytest.mark.parametrize("target", ["sla", "throughput", "latency", "load"])
def test_a_pool_that_nobody_needs_for_a_while_has_no_workers(target: Any) -> None:
    settings = PlannerSettings(min_endpoint=0, hold=20, window=10, startup=1, optimization_target=target)
    controller = Controller(settings)
    assert idle(controller, 0, 0).target == 0, "nobody has come yet"
    woken = idle(controller, 5, 0, wanted=True)
    assert (woken.target, woken.reason) == (1, "wanted")
    assert idle(controller, 10, 1, arrived=(100,)).target == 1
    busy = Observation(now=60.0, ready=(WorkerLoad(requests=1, capacity=1000, steps=STEPS),))
    assert controller.tick(busy).target == 1, "an answer that takes long"
    assert [idle(controller, 60 + second, 1).target for second in (5, 10, 15)] == [1, 1, 1]
    last = idle(controller, 80, 1)
    assert (last.target, last.reason) == (0, "idle")


def test_workers_without_steps_are_given_up_when_nobody_needs_them() -> None:
    controller = Controller(PlannerSettings(min_endpoint=0, hold=20, window=10))
    targets = [controller.tick(Observation(now=now, ready=loads(2, context=0, steps=()))).target for now in (0, 10, 20)]
    assert targets == [2, 2, 0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 9)), max_size=40), st.integers(0, 2))
def test_a_pool_is_never_empty_while_somebody_needs_it(ticks: list[tuple[bool, int, int]], least: int) -> None:
    settings = PlannerSettings(min_endpoint=least, hold=10, window=10)
    controller, ready = Controller(settings), 0
    for number, (wanted, open_, arrived) in enumerate(ticks):
        there = tuple(WorkerLoad(requests=open_, capacity=1000, steps=STEPS) for _ in range(ready))
        seen = Observation(now=5.0 * number, ready=there, arrived=(100,) * (arrived if ready else 0), wanted=wanted)
        ready = controller.tick(seen).target
        assert ready >= max(least, int(seen.busy))


@pytest.mark.parametrize(("waiting", "change"), [((2, 0), 1), ((1, 0), 0), ((0, 0), -1), ((0,), 0), ((1,), 1), ((), 0)])
def test_prefill_workers_by_the_prompts_that_wait(waiting: tuple[int, ...], change: int) -> None:
    ready = tuple(WorkerLoad(queued_prompts=count, context=999, capacity=1000) for count in waiting)
    assert by_queue(ready, Thresholds(0.5, 0.2)) == change
    if ready:
        controller = Controller(PlannerSettings(optimization_target="load"), "prefill")
        assert controller.tick(Observation(now=5.0, ready=ready)).target == max(1, len(ready) + change)


@pytest.mark.parametrize(
    ("uses", "change"), [([0.5, 0.95], 1), ([0.3, 0.5], 0), ([0.3, 0.35], -1), ([0.45, 0.45], 0), ([], 0)]
)
def test_thresholds_of_the_cache(uses: list[float], change: int) -> None:
    """Two at 0.45 are below the lower limit, and one of them alone would be at the upper one."""
    ready = tuple(WorkerLoad(context=round(use * 1000), capacity=1000) for use in uses)
    assert by_threshold(ready, Thresholds(0.9, 0.5)) == change


def test_the_last_worker_is_not_given_up_by_thresholds() -> None:
    assert by_threshold(loads(1, context=0), ORIGINAL["latency"]) == 0


@pytest.mark.parametrize("target", ["throughput", "latency", "load"])
def test_targets_of_thresholds_change_by_one_and_wait_for_who_starts(target: str) -> None:
    controller = Controller(PlannerSettings(optimization_target=target))  # type: ignore[arg-type]
    full = Observation(now=5.0, ready=loads(2, context=1_000_000))
    assert controller.tick(full).target == 3
    starting = Observation(now=10.0, ready=loads(2, context=1_000_000), starting=1)
    assert controller.tick(starting).target == 3
    assert controller.tick(Observation(now=15.0, ready=loads(3, context=0))).target == 2


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"min-endpoint": 9}, "min-endpoint 9 is above max-gpu-budget 8"),
        ({"max-gpu-budget": 0}, "$.max-gpu-budget"),
        ({"ttft": -1}, "$.ttft"),
        ({"max-memory": "much"}, "'much' is no size"),
        ({"max-memory": "0GB"}, "max-memory is 0GB; it must be above 0"),
        ({"max-memory": "1GB", "environment": "virtual"}, "what workers take is not known with environment virtual"),
        ({"optimization_target": "cheap"}, "$.optimization-target"),
        ({"load-predictor": "oracle"}, "$.load-predictor"),
        ({"speed": 1}, "speed"),
        ({"decode-kv-scale-down-threshold": 0.95}, "decode-kv-scale-down-threshold 0.95 is not below"),
        ({"prefill-queue-scale-up-threshold": 0.1}, "prefill-queue-scale-down-threshold 0.2 is not below"),
        ({"prefill-queue-scale-down-threshold": 0}, "$.prefill-queue-scale-down-threshold"),
    ],
)
def test_bad_settings_are_named(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        settings_of(given_)
    assert said in str(error.value)
    assert "optimization-target" in str(error.value.hint)


def test_settings_may_be_spelled_either_way() -> None:
    assert settings_of({"min-endpoint": 2, "max_gpu_budget": 4}) == PlannerSettings(min_endpoint=2, max_gpu_budget=4)
