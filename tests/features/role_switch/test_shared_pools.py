"""Two pools of a planner on two nodes: orders go to the node of the worker, and one change at a time."""

import asyncio
import random
from typing import Any

import msgspec

from dynamod.actor.testing import virtual
from dynamod.discovery.memory import MemoryRegistry
from dynamod.features.planner.nodes import PlannerNodes
from dynamod.features.planner.orders import PoolOrders
from dynamod.features.planner.pool import PlannedPool
from dynamod.features.planner.reconcile import BACKOFF
from dynamod.features.planner.records import Order
from dynamod.features.planner.settings import PlannerSettings
from dynamod.features.planner.worker_view import WorkerView
from dynamod.features.role_switch.shared_pools import pool_orders
from dynamod.message.discovery import Capabilities, Instance, ModelCard
from dynamod.message.kv_events import Load
from dynamod.message.pools import Pool, Replica

from ..planner.test_nodes import Leased

SETTINGS = PlannerSettings(max_gpu_budget=4, optimization_target="load")
CARD = ModelCard("m", capabilities=Capabilities(role_switch=True))
KINDS = {"Worker": "decode", "PrefillWorker": "prefill"}


class Node:
    """A node whose processes do what they are told, `seconds` later; `broken`: they do not change their role."""

    def __init__(self, registry: MemoryRegistry, name: str, first: int, tasks: list[Any]) -> None:
        self.leased, self.done, self.broken = Leased(registry), list[tuple[str, Order]](), False
        self.there = {
            component: [Replica(replica=0, state="Ready", lease=first + 10 * n, role=kind)]
            for n, (component, kind) in enumerate(KINDS.items())
        }
        self.first = first
        spawn = lambda work, _name: tasks.append(asyncio.ensure_future(work))  # noqa: E731
        self.nodes = PlannerNodes(self.leased, ("dynamo", "disagg", self.leased.lease), name, self.apply, spawn, 100.0)
        self.tell()

    def tell(self, done: dict[str, int] | None = None) -> None:
        pools = {component: Pool(replicas=tuple(replicas)) for component, replicas in self.there.items()}
        self.nodes.tell(pools, done)

    async def apply(self, component: str, order: Order) -> None:
        self.done.append((component, order))
        await asyncio.sleep(5)
        there = self.there[component]
        if order.switch:
            new = [
                msgspec.structs.replace(one, role=order.role) if one.replica in order.switch else one for one in there
            ]
            there[:] = there if self.broken else new
        else:
            there[:] = [one for one in there if one.replica not in order.leave][: order.replicas]
            for n in range(len(there), order.replicas):
                there.append(Replica(replica=n, state="Ready", lease=self.first + 100 + n, role=KINDS[component]))
        self.tell({component: order.number})


class Planner:
    """Of node one. `ask` has a tick with these targets."""

    def __init__(self, one: Node) -> None:
        self.pools = {name: PlannedPool(name, kind, SETTINGS) for name, kind in KINDS.items()}
        self.orders = pool_orders(self.pools.values(), one.nodes)

    def ask(self, now: float, **targets: int) -> bool:
        sides = []
        for name, pool in self.pools.items():
            self.orders.follow(pool)
            states = self.orders.states(pool)
            pool.workers = {one.lease: WorkerView(16) for state in states.values() for one in state.replicas}
            for view in pool.workers.values():
                view.take([Load(0, 0, 0, 50, 0.0)], True)
            side = pool.propose(now, states)
            tick = msgspec.structs.replace(side.tick, target=targets[name])
            sides.append(msgspec.structs.replace(side, tick=tick))
            pool._side = sides[-1]
        cards = {lease: CARD for pool in self.pools.values() for lease in pool.workers}
        if self.orders.switch(sides, 4, cards):
            return True
        for pool in self.pools.values():
            self.orders.follow(pool)
            action = pool.decide(0.0, 8)
            if action.changes:
                self.orders.order(pool, action)
        return False

    def count(self) -> dict[str, int]:
        return {
            name: sum(state.wanted for state in self.orders.states(pool).values()) for name, pool in self.pools.items()
        }


@virtual
async def test_the_order_goes_to_the_node_of_the_worker_and_back() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two = Node(registry, "one", 1, tasks), Node(registry, "two", 1001, tasks)
    planner = Planner(one)
    assert planner.count() == {"Worker": 2, "PrefillWorker": 2}
    assert not planner.ask(0, Worker=2, PrefillWorker=2)
    assert planner.ask(5, Worker=3, PrefillWorker=1)
    assert (one.done, two.done) == ([], []), "not within the call"
    await asyncio.sleep(1)
    [(component, order)] = one.done
    assert (component, order.switch, order.role, order.replicas, two.done) == ("PrefillWorker", (0,), "decode", 1, [])
    assert not planner.ask(10, Worker=4, PrefillWorker=1)
    assert {pool.records[-1].refused for pool in planner.pools.values()} == {"scaling_in_progress"}
    await asyncio.sleep(10)
    assert planner.count() == {"Worker": 3, "PrefillWorker": 1}
    planner.ask(15, Worker=3, PrefillWorker=1)
    assert planner.pools["Worker"].records[-1].refused == "", "nobody else has done it"
    # it leaves as a worker of the other pool; then the rest of that is as it was
    assert not planner.ask(20, Worker=1, PrefillWorker=1)
    await asyncio.sleep(10)
    assert planner.count() == {"Worker": 1, "PrefillWorker": 1}
    assert {component for component, _ in [*one.done, *two.done]} == {"Worker", "PrefillWorker"}
    await asyncio.gather(*tasks)


@virtual
async def test_a_worker_that_does_not_change_is_not_asked_again_at_once() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one = Node(registry, "one", 1, tasks)
    one.there["Worker"].append(Replica(replica=1, state="Ready", lease=2, role="decode"))
    one.broken = True
    one.tell()
    planner = Planner(one)
    assert planner.ask(0, Worker=1, PrefillWorker=2)
    await asyncio.sleep(10)
    assert planner.count() == {"Worker": 2, "PrefillWorker": 1}
    assert not planner.ask(5, Worker=1, PrefillWorker=2), "it starts one, and ends the other"
    await asyncio.sleep(10)
    assert planner.count() == {"Worker": 1, "PrefillWorker": 2}
    assert not planner.ask(10, Worker=1, PrefillWorker=2)
    assert planner.ask(0.5 + BACKOFF + 5, Worker=2, PrefillWorker=1), "later it is"
    await asyncio.gather(*tasks)


@virtual
async def test_pools_without_such_workers_are_those_of_their_components() -> None:
    registry = MemoryRegistry(random.Random(1))
    one = Node(registry, "one", 1, [])
    pools = [PlannedPool(name, "decode", SETTINGS) for name in KINDS]
    for orders in (pool_orders(pools, one.nodes), PoolOrders(one.nodes)):
        assert orders.states(pools[1]) == one.nodes.pools("PrefillWorker")
        instance = Instance("dynamo", "backend", "generate", 1, {}, pool="prefill")
        assert orders.pool_of("Worker", instance) == "Worker"
    shared = pool_orders(Planner(one).pools.values(), one.nodes)
    assert shared.pool_of("Worker", instance) == "PrefillWorker"
