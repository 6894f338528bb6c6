"""Machines with models on demand: what the simulation draws, and mistakes in the keeper that it finds."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dynamod.features.on_demand import room
from dynamod.features.on_demand.core import OnDemand
from tools.sim.ondemand import draw_on_demand
from tools.sim.run import simulate
from tools.sim.shape import Shape, faults_of

Patch = Callable[[pytest.MonkeyPatch], None]


def drawn(shape: Shape, first: int = 0) -> Iterator[int]:
    """Seeds with models on demand."""
    return (seed for seed in range(first, first + 1000) if draw_on_demand(seed, shape) is not None)


def forgets_who_loads(patch: pytest.MonkeyPatch) -> None:
    """A model that is being loaded takes nothing of the budget."""
    fits = room.fits

    def without(models: Any, budget: Any) -> bool:
        return fits([one for one in models if one.state != "loading"], budget)

    patch.setattr(room, "fits", without)


def forgets_who_runs(patch: pytest.MonkeyPatch) -> None:
    """A model is idle as soon as its requests have been sent to it."""
    admit = OnDemand._admit

    def forgetful(self: OnDemand, model: Any) -> Any:
        actions = admit(self, model)
        model.running.clear()
        return actions

    patch.setattr(OnDemand, "_admit", forgetful)


def forgets_who_leaves(patch: pytest.MonkeyPatch) -> None:
    """A keeper that begins anew knows nothing of the workers that are on their way out."""
    patch.setattr(OnDemand, "leaves", lambda _self, _now, _name: [])


def never_hears_the_end(patch: pytest.MonkeyPatch) -> None:
    """The end of a request is not told."""

    patch.setattr(OnDemand, "ended", lambda _self, _now, _request: [])


MUTANTS: list[tuple[Patch, str, int, set[str]]] = [
    (forgets_who_loads, "none", 0, {"within the budget"}),
    (forgets_who_runs, "none", 0, {"no unload under a request"}),
    (forgets_who_leaves, "ingress-restart,stuck-drain,leave", 80, {"within the budget"}),
    (never_hears_the_end, "none", 0, {"one end", "requests end", "no model starves"}),
]
"""With their faults, a seed from which on one soon finds them, and what it says."""


@pytest.mark.parametrize(("mutant", "faults", "first", "checks"), MUTANTS, ids=[one[0].__name__ for one in MUTANTS])
def test_a_mistake_is_found(
    mutant: Patch, faults: str, first: int, checks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(faults=faults_of(f"{faults},on-demand"))
    mutant(monkeypatch)
    seen: set[str] = set()
    for _, seed in zip(range(10), drawn(shape, first), strict=False):
        seen |= {check for check, _ in simulate(seed, shape).problems}
        if seen & checks:
            monkeypatch.undo()
            assert not simulate(seed, shape).problems
            return
    pytest.fail(f"nobody noticed; seen: {seen}")


def test_models_come_and_go() -> None:
    shape, ends, orders = Shape(faults=faults_of("on-demand,crash,leave")), Counter[str](), 0
    for _, seed in zip(range(5), drawn(shape), strict=False):
        outcome = simulate(seed, shape)
        assert not outcome.problems, outcome.problems
        ends.update(outcome.ends)
        orders += sum(" order " in line for line in outcome.lines)
    assert ends["finished"] > 150
    assert orders > 50
    again = next(drawn(shape))
    assert simulate(again, shape).digest == simulate(again, shape).digest


def test_a_request_that_was_at_two_crashes_may_be_refused() -> None:
    """Two faults hit the workers of r34, the second one while the request was alone there."""
    outcome = simulate(5820195, Shape())
    assert not outcome.problems, outcome.problems
    assert any("r34 failed" in line and "PoisonRequest" in line for line in outcome.lines)
