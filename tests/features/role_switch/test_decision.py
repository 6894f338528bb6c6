"""Two pools that share their workers: who is where, and which worker changes its role. Pure; all is made up."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.planner.controller import Reason, Tick
from dynamod.features.planner.laws import Estimate
from dynamod.features.planner.observation import WorkerLoad
from dynamod.features.planner.pool import PlannedPool, Side
from dynamod.features.planner.reconcile import Action, Change
from dynamod.features.planner.settings import PlannerSettings
from dynamod.features.planner.worker_view import WorkerView
from dynamod.features.role_switch.decision import Switch, able, by_role, orders, switch
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.kv_events import Load
from dynamod.message.pools import Pool, Replica


def pool(*roles: str, first: int = 1, free: int | None = None, state: str = "Ready") -> Pool:
    """Replicas 0, 1, ... with these roles; their leases begin at `first`."""
    made = [Replica(replica=n, state=state, lease=first + n, role=role) for n, role in enumerate(roles)]
    return Pool(replicas=tuple(made), free=free)


def numbers(found: Pool) -> list[tuple[int, bool]]:
    return [(one.replica, one.guest) for one in found.replicas]


def test_workers_are_in_the_pool_of_their_role() -> None:
    decode = {"one": pool("aggregated", "prefill", ""), "two": pool("decode", free=3)}
    prefill = {"one": pool("prefill", "decode", "", first=11)}
    found = by_role("decode", decode, prefill, "prefill")
    assert (numbers(found["one"]), found["two"].free) == ([(0, False), (2, False), (1, True)], 3)
    assert found["two"].replicas == decode["two"].replicas
    found = by_role("prefill", prefill, decode, "decode")
    assert numbers(found["one"]) == [(0, False), (2, False), (1, True)]
    assert (found["two"].free, found["two"].replicas) == (0, ()), "nobody starts prefill workers there"


def test_orders_are_in_processes_of_the_components() -> None:
    decode = {"one": pool("decode", "prefill"), "two": pool("decode")}
    prefill = {"one": pool("prefill", "decode", "decode", first=11)}
    there = by_role("decode", decode, prefill, "prefill")
    more = Action(changes={"one": Change(replicas=5), "two": Change(replicas=0, leave=(0,))})
    assert orders(more, there, decode, prefill) == (
        {"one": Change(replicas=4), "two": Change(replicas=0, leave=(0,))},
        {},
    )
    fewer = Action(changes={"one": Change(replicas=1, leave=(0,), guests=(2,))})
    assert orders(fewer, there, decode, prefill) == (
        {"one": Change(replicas=1, leave=(0,))},
        {"one": Change(replicas=2, leave=(2,))},
    )


def tick(expected: int, target: int, needed: int | None = None) -> Tick:
    """`needed`: lately, where the controller knows that."""
    reason: Reason = "no_change"
    known = None if needed is None else Estimate(1, 0.0, 0.0, 0.0)
    return Tick(now=0, expected=expected, target=target, reason=reason, recent=needed or 0, estimate=known)


def side(kind: str, there: Pool, target: int, needed: int | None = None, **more: Any) -> Side:
    loads = {one.lease: WorkerLoad(context=100 * one.lease) for one in there.replicas if one.state == "Ready"}
    made = Side(kind=kind, tick=tick(len(there.replicas), target, needed), pools={"here": there}, loads=loads, least=1)
    return msgspec.structs.replace(made, **more)


TWO, FOUR = pool("prefill", "prefill", first=11), pool(*["decode"] * 4)
ABLE = range(20)


def asked(prefill: Side, decode: Side, room: int = 6, able: Any = ABLE) -> Any:
    found = switch([decode, prefill], room, able)
    assert found == switch([prefill, decode], room, able)
    return found


def test_one_goes_where_another_is_wanted() -> None:
    found = asked(side("prefill", TWO, 3), side("decode", FOUR, 3), room=20)
    assert found == Switch("here", FOUR.replicas[0], "prefill"), "room or not; the one with the least to do"
    assert asked(side("prefill", TWO, 1), side("decode", FOUR, 5)) == Switch("here", TWO.replicas[0], "decode")
    assert asked(side("prefill", TWO, 2), side("decode", FOUR, 3)) is None


def test_who_keeps_more_than_it_needs_gives_one_only_where_nobody_can_start() -> None:
    wants, idle = side("prefill", TWO, 3), side("decode", FOUR, 4, needed=1)
    assert asked(wants, idle, room=8) is None
    assert asked(wants, idle) is not None
    assert asked(wants, side("decode", FOUR, 4, needed=4)) is None
    assert asked(wants, side("decode", FOUR, 4)) is None, "who does not know what it needs keeps all"
    full = side("prefill", msgspec.structs.replace(TWO, free=0), 3)
    assert asked(full, idle, room=8) is not None


def test_who_may_not_be_changed_stays() -> None:
    wants, gives = side("prefill", TWO, 3), side("decode", FOUR, 3)
    assert asked(wants, gives) is not None
    assert asked(wants, gives, room=5) is None, "more than there may be: somebody goes for good"
    assert asked(wants, gives, able=()) is None
    assert asked(wants, gives, able=(2, 3)).replica.lease == 2
    assert asked(wants, side("decode", FOUR, 3, least=4)) is None
    assert asked(wants, side("decode", FOUR, 3, refused="manual")) is None
    assert asked(side("prefill", TWO, 3, refused="paused"), gives) is None
    starts = pool(*["decode"] * 4, state="Starting")
    assert asked(wants, side("decode", starts, 3)) is None
    leaves = pool(*["decode"] * 4, state="Draining")
    assert asked(wants, side("decode", leaves, 3, loads={1: WorkerLoad(), 2: WorkerLoad()})) is None


class World:
    """Processes that do at once what is ordered, and two pools that are told what to propose."""

    def __init__(self, budget: int, least: tuple[int, int]) -> None:
        settings = PlannerSettings(
            max_gpu_budget=budget,
            prefill_min_endpoint=least[0],
            decode_min_endpoint=least[1],
            optimization_target="load",
        )
        self.budget = budget
        self.pools = {kind: PlannedPool(kind, kind, settings) for kind in ("prefill", "decode")}
        self.there = {
            kind: [kind] * count for kind, count in zip(self.pools, least, strict=True)
        }  # roles, by component
        self.firsts = {"prefill": 100, "decode": 200}
        self.switches = 0

    def states(self, component: str) -> dict[str, Pool]:
        return {"here": pool(*self.there[component], first=self.firsts[component])}

    def view(self, kind: str) -> dict[str, Pool]:
        other = next(one for one in self.pools if one != kind)
        return by_role(kind, self.states(kind), self.states(other), other)  # type: ignore[return-value]

    def count(self, kind: str) -> int:
        return sum(role == kind for roles in self.there.values() for role in roles)

    def tick(self, now: float, targets: dict[str, int]) -> None:
        sides = []
        for kind, one in self.pools.items():
            there = self.view(kind)
            one.workers = {replica.lease: WorkerView(16) for replica in there["here"].replicas}
            for view in one.workers.values():
                view.take([Load(0, 0, 0, 50, 0.0)], True)
            one.reconciler.settled()
            made = one.propose(now, there)
            most = max(made.least, min(targets[kind], self.budget))
            one._side = msgspec.structs.replace(made, tick=tick(made.tick.expected, most))
            sides.append(one._side)
        found = switch(sides, self.budget, range(1000))
        if found is not None:
            self.switches += 1
            home = next(kind for kind, first in self.firsts.items() if 0 <= found.replica.lease - first < 100)
            self.there[home][found.replica.replica] = found.kind
            for kind, one in self.pools.items():
                one.switched(0.0, "here", "", 1 if kind == found.kind else -1)
            return
        for kind, one in self.pools.items():
            other = next(name for name in self.pools if name != kind)
            action = one.decide(0.0, self.budget - self.pools[other].expected)
            own, guests = orders(action, self.view(kind), self.states(kind), self.states(other))
            for component, changes in ((kind, own), (other, guests)):
                for change in changes.values():
                    stay = [role for n, role in enumerate(self.there[component]) if n not in change.leave]
                    self.there[component] = stay + [component] * (change.replicas - len(stay))


@given(
    st.integers(2, 9),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30),
)
def test_never_more_than_the_budget_and_never_fewer_than_the_least(budget: int, least: Any, targets: Any) -> None:
    world = World(budget, least)
    for now, (prefill, decode) in enumerate(targets):
        world.tick(5.0 * now, {"prefill": prefill, "decode": decode})
        assert world.count("prefill") + world.count("decode") <= budget
        assert world.count("prefill") >= least[0]
        assert world.count("decode") >= least[1]


def test_a_budget_that_is_used_up_follows_the_load() -> None:
    world = World(6, (1, 1))
    for now in range(30):
        world.tick(5.0 * now, {"prefill": 5, "decode": 1})
    assert (world.count("prefill"), world.count("decode")) == (5, 1)
    for now in range(30, 60):
        world.tick(5.0 * now, {"prefill": 1, "decode": 5})
    assert (world.count("prefill"), world.count("decode"), world.switches) == (1, 5, 4)


def test_workers_change_their_role_where_all_are_alike() -> None:
    card = ModelCard("m", capabilities=Capabilities(role_switch=True), kv_cache_block_size=16)
    assert able({1: card, 2: card}) == [1, 2]
    others = [
        msgspec.structs.replace(card, kv_cache_block_size=32),
        msgspec.structs.replace(card, capabilities=Capabilities()),
    ]
    assert [able({1: card, 2: other}) for other in others] == [[], []]
    assert able({}) == []
