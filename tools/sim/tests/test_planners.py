"""Clusters with planners: what the simulation draws, and mistakes in planners that it finds."""

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec
import pytest

from dynamod.daemon.processes import Processes
from dynamod.features.planner import pool, reconcile
from dynamod.features.planner.nodes import PlannerNodes
from dynamod.features.planner.pool import Side
from dynamod.features.planner.reconcile import Reconciler
from dynamod.features.role_switch import decision, shared_pools
from dynamod.features.role_switch.decision import Switch
from dynamod.features.role_switch.shared_pools import SharedPools
from tools.sim.run import simulate
from tools.sim.scaling import draw_scaling
from tools.sim.shape import Shape, faults_of

Patch = Callable[[pytest.MonkeyPatch], None]


def planned(shape: Shape, first: int = 0) -> Iterator[int]:
    """Seeds that have planners."""
    return (seed for seed in range(first, first + 1000) if draw_scaling(seed, shape, gentle=False) is not None)


def orders_while_it_waits(patch: pytest.MonkeyPatch) -> None:
    """A reconciler does not wait until what it has ordered is done."""
    patch.setattr(Reconciler, "in_progress", property(lambda _self: False, lambda _self, _value: None), raising=False)


def decides_as_standby(patch: pytest.MonkeyPatch) -> None:
    """Each planner takes itself for the one that decides."""
    patch.setattr(PlannerNodes, "active", True)


def ends_workers_at_once(patch: pytest.MonkeyPatch) -> None:
    """Scaling down stops workers, and does not let them finish."""

    async def stop(self: Processes, ends: object, timeout: float) -> None:
        for running, index in ends:  # type: ignore[attr-defined]
            await self.supervisor.stop_child(running.child(index))  # type: ignore[union-attr]

    patch.setattr(Processes, "end", stop)


def scales_alone(patch: pytest.MonkeyPatch) -> None:
    """A planner goes on when its node has lost the others."""
    held = Reconciler._held
    patch.setattr(Reconciler, "_held", lambda self, pools: held(self, {}))


def starts_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Workers that did not become ready are started again without a pause."""
    patch.setattr(reconcile, "BACKOFF", 0.0)


def decides_by_old_news(patch: pytest.MonkeyPatch) -> None:
    """A planner that was cut off goes on at once, although it may know of workers that have ended meanwhile."""
    patch.setattr(PlannerNodes, "unsure", lambda _self: None)


def leaves_a_pool_empty(patch: pytest.MonkeyPatch) -> None:
    """A worker changes its role although its pool has no other."""

    def switch(sides: Sequence[Side], room: int, able: Collection[int]) -> Switch | None:
        return decision.switch([msgspec.structs.replace(side, least=0) for side in sides], room, able)

    patch.setattr(shared_pools, "switch", switch)


def forgets_the_other_component(patch: pytest.MonkeyPatch) -> None:
    """A pool does not wait for what has been ordered of its workers."""
    patch.setattr(SharedPools, "follow", lambda _self, one: setattr(one.reconciler, "in_progress", False))


def takes_devices_twice(patch: pytest.MonkeyPatch) -> None:
    """Two pools take the same devices in one tick."""
    patch.setattr(pool, "_without", lambda one, _taken: one)


def expects_who_is_given_up(patch: pytest.MonkeyPatch) -> None:
    """A worker that never became ready counts as one less when it is given up."""
    patch.setattr(pool, "_failed", lambda _pool, _change: 0)


REGISTRY = "planner,registry-cut,registry-outage,registry-loss,crash,hang,node-death"

MUTANTS: list[tuple[Patch, str, int, set[str]]] = [
    (orders_while_it_waits, "planner", 10, {"one order at a time"}),
    (decides_as_standby, "planner", 0, {"one order at a time", "the pool is as planned"}),
    (ends_workers_at_once, "planner", 0, {"drains let requests finish"}),
    (scales_alone, "planner,registry-cut,registry-outage", 53, {"nothing is scaled alone"}),
    (decides_by_old_news, REGISTRY, 1833, {"at least the minimum"}),
    (leaves_a_pool_empty, "planner,role-switch,by-hand", 442, {"at least the minimum"}),
    (forgets_the_other_component, "planner,role-switch,by-hand", 44, {"one order at a time"}),
    (takes_devices_twice, "planner,role-switch,start-fail", 1354, {"no internal errors"}),
    (expects_who_is_given_up, "all", 3394, {"within the budget"}),
    (starts_again_at_once, "planner,start-fail", 41, {"failed starts are not repeated at once"}),
]
"""With their faults, a seed from which on one soon finds them, and what it says."""


@pytest.mark.parametrize(("mutant", "faults", "first", "checks"), MUTANTS, ids=[one[0].__name__ for one in MUTANTS])
def test_a_mistake_is_found(
    mutant: Patch, faults: str, first: int, checks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(faults=faults_of(faults))
    mutant(monkeypatch)
    seen: set[str] = set()
    for _, seed in zip(range(10), planned(shape, first), strict=False):
        seen |= {check for check, _ in simulate(seed, shape).problems}
        if seen & checks:
            monkeypatch.undo()
            assert not simulate(seed, shape).problems
            return
    pytest.fail(f"nobody noticed; seen: {seen}")


def test_planners_scale_and_are_killed_at_it() -> None:
    shape, orders, killed = Shape(faults=faults_of("planner,start-fail,by-hand,stuck-drain")), 0, 0
    for _, seed in zip(range(5), planned(shape), strict=False):
        outcome = simulate(seed, shape)
        assert not outcome.problems, outcome.problems
        orders += sum(" order " in line for line in outcome.lines)
        killed += sum(" planner" in line and "dies (killed" in line for line in outcome.lines)
    assert orders > 15
    assert killed > 3
    assert simulate(8, shape).digest == simulate(8, shape).digest
