"""Clusters with planners: what the simulation draws, and mistakes in planners that it finds."""

from collections.abc import Callable, Iterator

import pytest

from dynamod.daemon.runner import GraphRunner
from dynamod.planner import reconcile
from dynamod.planner.reconcile import Reconciler
from dynamod.runtime.components.planner_nodes import PlannerNodes
from dynamod.sim.run import simulate
from dynamod.sim.scaling import draw_scaling
from dynamod.sim.shape import Shape, faults_of

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

    async def stop(self: GraphRunner, ends: object, timeout: float) -> None:
        for running, index in ends:  # type: ignore[attr-defined]
            await self._supervisor.stop_child(running.child(index))  # type: ignore[union-attr]

    patch.setattr(GraphRunner, "_end", stop)


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


MUTANTS: list[tuple[Patch, str, int, set[str]]] = [
    (orders_while_it_waits, "planner", 10, {"one order at a time"}),
    (decides_as_standby, "planner", 0, {"one order at a time", "the pool is as planned"}),
    (ends_workers_at_once, "planner", 0, {"drains let requests finish"}),
    (scales_alone, "planner,registry-cut,registry-outage", 53, {"nothing is scaled alone"}),
    (decides_by_old_news, "all", 5145, {"at least the minimum"}),
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
