"""A pool under a planner: what workers publish, what is measured, and what is kept of each tick."""

import msgspec
import pytest

from dynamod.features.planner.observation import StepSample, WorkerLoad
from dynamod.features.planner.pool import PlannedPool
from dynamod.features.planner.reconcile import Action, Change
from dynamod.features.planner.records import PoolControl
from dynamod.features.planner.settings import PlannerSettings
from dynamod.features.planner.worker_view import WorkerView
from dynamod.message.errors import UserError
from dynamod.message.kv_events import ForwardPass, Load, QueuedRequests, RequestStarted, ScheduledRequests
from dynamod.message.pools import Pool, Replica


def test_a_worker_is_known_by_its_events() -> None:
    worker = WorkerView(16)
    worker.take([RequestStarted(1, (), 100), Load(1, 0, 4, 50, 0.0)], True)
    assert worker.arrived() == []  # it came before we looked
    computed, waits = ScheduledRequests(sum_prefill_tokens=64, sum_decode_kv_tokens=300), QueuedRequests(1, 130, 0.0)
    steps = [ForwardPass(1, 0.01), ForwardPass(2, 0.02, computed, waits, running_prefill_tokens=36)]
    worker.take([RequestStarted(2, (), 30), *steps, RequestStarted(3, (), 0)], False)
    found = worker.load()
    assert found.steps == (StepSample(64, 300, 0.02),), "who does not know what was computed says nothing"
    assert (found.queued_prefill, found.running_prefill, found.context, found.capacity) == (130, 36, 64, 800)
    assert (worker.arrived(), worker.arrived()) == ([30, 1], [])
    worker.take([ForwardPass(3, 0.0, ScheduledRequests(0, 0), QueuedRequests(0, 0)), Load(0, 0, 0, 50, 0.0)], False)
    assert worker.load() == WorkerLoad(capacity=800)


def test_ranks_of_a_worker_count_together() -> None:
    worker = WorkerView(16)
    worker.take([ForwardPass(1, 0.01, queued_requests=QueuedRequests(1, 10), dp_rank=rank) for rank in (0, 1)], False)
    assert worker.load().queued_prefill == 20


def made(**settings: int) -> PlannedPool:
    found = PlannedPool("Worker", "decode", PlannerSettings(**settings))
    found.workers[1] = WorkerView(16)
    found.workers[1].take([Load(0, 0, 0, 50, 0.0)], True)
    return found


def tick(one: PlannedPool, now: float, at: float, pools: dict[str, Pool], room: int) -> Action:
    one.propose(now, pools)
    return one.decide(at, room)


def test_who_tells_nothing_is_not_ready() -> None:
    """What others have put into the registry, or cannot be reached, does no work."""
    one = made(min_endpoint=1)
    one.workers[2] = WorkerView(16)
    tick(one, 0, 0.0, {"here": replicas("Ready")}, 8)
    assert (one.status()["last"]["ready"], one.expected) == (1, 1)
    tick(one, 5, 0.0, {"here": replicas("Ready", "Ready")}, 8)
    assert (one.status()["last"]["starting"], one.expected) == (1, 2)


def replicas(*states: str, uptime: float = 50.0) -> Pool:
    return Pool(
        replicas=tuple(Replica(replica=n, state=state, uptime=uptime, lease=n + 1) for n, state in enumerate(states))
    )


def test_how_long_workers_take_to_start_is_measured() -> None:
    one = made()
    one.look(0, replicas("Ready"))
    assert one.controller.startup == 30, "those of the beginning came with us"
    one.look(1, replicas("Ready", "Starting"))
    one.look(11, replicas("Ready", "Ready"))
    assert one.controller.startup == 20
    one.look(12, replicas("Ready", "Ready", "Ready", uptime=0.5))
    assert one.controller.startup == 10.25, "one that was ready between two looks"
    one.look(13, replicas("Ready"))
    one.look(14, replicas("Ready"))
    assert one.controller.startup == 10.25


def test_ticks_are_kept_with_their_reasons() -> None:
    one = made(min_endpoint=3)
    action = tick(one, 0, 1000.0, {"here": replicas("Ready")}, 8)
    assert action.changes == {"here": Change(replicas=3)}
    last = one.status()["last"]
    assert (last["at"], last["ready"], last["starting"], last["replicas"]) == (1000.0, 1, 0, 3)
    assert (last["tick"]["reason"], last["tick"]["target"]) == ("scale_up", 3)
    assert one.expected == 3


def test_the_budget_of_all_pools_bounds_it_and_takes_nothing_away() -> None:
    one = made(min_endpoint=3)
    assert tick(one, 0, 0.0, {"here": replicas("Ready")}, 2).changes["here"].replicas == 2
    assert tick(one, 5, 0.0, {"here": replicas("Ready", "Starting")}, 1).changes == {}


def test_the_budget_is_one_of_gpus() -> None:
    two = [Pool(replicas=replicas("Ready").replicas, gpus=2)]
    one = made(min_endpoint=3, max_gpu_budget=8)
    tick(one, 0, 0.0, {"here": two[0]}, 8)
    assert (one.gpus, one.controller.settings.max_gpu_budget, one.status()["max"]) == (2, 4, 8)
    one.use(one.limited(max_gpu_budget=7))
    assert (one.controller.settings.max_gpu_budget, one.status()["max"]) == (3, 7)
    with pytest.raises(UserError, match="min-endpoint 4 with 2 GPUs each is above max-gpu-budget 7"):
        one.limited(min_endpoint=4)


def test_devices_that_another_pool_takes_in_the_same_tick_are_not_free() -> None:
    one = made(min_endpoint=4)
    there = {"here": Pool(replicas=(), free=2, gpus=2), "there": Pool(replicas=(), free=1, gpus=2)}
    one.propose(0.0, there)
    action = one.decide(0.0, 8, {"here": 3, "elsewhere": 8})
    assert {node: change.replicas for node, change in action.changes.items()} == {"there": 1}
    assert action.refused == "no_devices"


def test_who_is_given_up_was_not_expected() -> None:
    one = made()
    pool = {"here": Pool(replicas=(*replicas("Ready").replicas, Replica(replica=7, state="Fatal")))}
    assert tick(one, 0, 0.0, pool, 8).changes["here"].leave == (7,)
    assert one.expected == 1, "else another pool takes its place in the budget beside the next one"


def test_who_ran_before_its_node_began_anew_does_not_count() -> None:
    one = made()
    one.workers[9] = WorkerView(16, "here")
    one.workers[9].take([Load(0, 0, 0, 50, 0.0)], True)
    tick(one, 0, 0.0, {"here": replicas("Ready")}, 8)
    assert (one.records[-1].ready, one.records[-1].starting) == (1, 0)
    one.workers[9].node = "elsewhere"  # where nobody tells of processes
    tick(one, 5, 0.0, {"here": replicas("Ready")}, 8)
    assert (one.records[-1].ready, one.records[-1].starting) == (2, 0)


def test_limits_are_changed_and_stay_possible() -> None:
    one = made()
    tick(one, 0, 0.0, {"here": replicas("Ready")}, 8)
    one.use(one.limited(min_endpoint=2))
    assert tick(one, 5, 0.0, {"here": replicas("Ready")}, 8).changes["here"].replicas == 2
    with pytest.raises(UserError, match="planner of Worker: min-endpoint 9 is above max-gpu-budget 8"):
        one.limited(min_endpoint=9)


def test_what_people_ask_is_done_once() -> None:
    one = made()
    tick(one, 0, 0.0, {"here": replicas("Ready")}, 8)
    asked = PoolControl(at=1.0, paused=True)
    one.obey(asked)
    assert one.status()["state"] == "paused"
    one.obey(asked := msgspec.structs.replace(asked, at=2.0, least=2, most=3))
    assert (one.status()["state"], one.status()["min"], one.status()["max"]) == ("paused", 2, 3)
    one.obey(asked := msgspec.structs.replace(asked, at=3.0, paused=False, resumed=3.0))
    assert (one.status()["state"], one.status()["min"]) == ("active", 2)
    one.reconciler.manual = True  # somebody has started a worker since
    one.obey(asked := msgspec.structs.replace(asked, at=4.0, least=1))
    assert (one.status()["state"], one.status()["min"]) == ("manual", 1), "only to resume takes over again"
    one.obey(msgspec.structs.replace(asked, at=5.0, resumed=5.0))
    assert one.status()["state"] == "active"


def test_other_limits_do_not_forget_failed_starts() -> None:
    """Also before the first tick that is kept: what does not start would be started again at once."""
    one = made()
    one.reconciler.failures = 2
    one.obey(PoolControl(at=1.0, least=2, most=3))
    assert one.reconciler.failures == 2
    assert one.reconciler.settings.min_endpoint == 2
    one.obey(PoolControl(at=2.0, least=2, most=3, resumed=2.0))
    assert one.reconciler.failures == 0


def test_what_people_ask_holds_before_the_first_tick() -> None:
    one = made()
    one.obey(PoolControl(at=1.0, paused=True, least=2, most=3))
    assert (one.status()["state"], one.status()["min"], one.status()["max"]) == ("paused", 2, 3)
    with pytest.raises(UserError, match="min-endpoint 9 is above max-gpu-budget 3"):
        one.obey(PoolControl(at=2.0, paused=False, resumed=2.0, least=9, most=3))
    assert one.status()["state"] == "active"


def test_each_pool_has_its_own_least() -> None:
    settings = PlannerSettings(min_endpoint=1, prefill_min_endpoint=2, decode_min_endpoint=3)
    kinds = {
        kind: PlannedPool("Worker", kind, settings).controller.settings.min_endpoint for kind in ("prefill", "decode")
    }
    assert kinds == {"prefill": 2, "decode": 3}


def test_what_is_ordered_and_not_seen_yet_counts() -> None:
    """Another pool must not take the room for it."""
    one, there = made(min_endpoint=3), {"here": replicas("Ready")}
    tick(one, 0, 0.0, there, 8)
    one.reconciler.in_progress = True
    one.propose(5, there)
    assert one.expected == 3
    one.reconciler.in_progress = False
    one.propose(10, there)
    assert one.expected == 1


def test_a_worker_that_comes_from_another_pool_is_a_record() -> None:
    one = made()
    one.propose(0, {"here": replicas("Ready")})
    one.switched(1000.0, "here", "PrefillWorker.0 becomes decode", 1)
    last = one.status()["last"]
    assert (last["replicas"], last["switched"], last["refused"]) == (2, "PrefillWorker.0 becomes decode", "")
    assert (last["tick"]["reason"], one.expected, one.switches) == ("switch", 2, 1)


def test_a_pool_without_workers_needs_what_has_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made(min_endpoint=1)
    assert one.limited(min_endpoint=0).min_endpoint == 0
    monkeypatch.setenv("DYNAMOD_FEATURES", "-on_demand")
    with pytest.raises(
        UserError, match="planner of Worker: min-endpoint 0 needs the feature 'on_demand', which is off"
    ):
        one.limited(min_endpoint=0)
