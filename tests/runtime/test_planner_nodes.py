"""Planners of one graph on several nodes: one decides, each does what concerns its node."""

import asyncio
import random
from typing import Any

from dynamod.actor.testing import virtual
from dynamod.discovery.keys import PLANNERS
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.pools import Order, Pool, Replica
from dynamod.planner.reconcile import Change
from dynamod.runtime.components.planner_nodes import PlannerNodes


class Leased:
    """The registry as one process sees it."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self.registry, self.lease = registry, registry.grant()

    def put(self, key: str, value: bytes) -> None:
        self.registry.put(key, value, self.lease)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.registry, name)


class Node:
    """A planner's view of the nodes, and the orders that it has done."""

    def __init__(self, registry: MemoryRegistry, name: str, tasks: list[Any], seconds: float = 0.0) -> None:
        self.leased, self.done, self.seconds = Leased(registry), list[tuple[str, Order]](), seconds
        spawn = lambda work, _name: tasks.append(asyncio.ensure_future(work))  # noqa: E731
        place = ("dynamo", "agg", self.leased.lease)
        self.nodes = PlannerNodes(self.leased, place, name, self.apply, spawn, 100.0)
        self.tell(0)

    def tell(self, count: int, done: dict[str, int] | None = None) -> None:
        replicas = tuple(Replica(replica=n, state="Ready", uptime=random.random()) for n in range(count))
        self.nodes.tell({"Worker": Pool(replicas=replicas)}, done)

    async def apply(self, component: str, order: Order) -> None:
        await asyncio.sleep(self.seconds)
        self.done.append((component, order))
        self.tell(order.replicas, {component: order.number})


def wanted(node: Node) -> dict[str, int]:
    return {name: pool.wanted for name, pool in node.nodes.pools("Worker").items()}


@virtual
async def test_the_oldest_decides_and_the_next_when_it_has_gone() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two = Node(registry, "one", tasks), Node(registry, "two", tasks, seconds=10)
    assert [one.nodes.active, two.nodes.active] == [True, False]
    one.nodes.order("Worker", {"one": Change(replicas=1), "two": Change(replicas=3, leave=(4,))})
    await asyncio.sleep(1)
    assert (one.done[0][1].replicas, two.done, one.nodes.pending("Worker")) == (1, [], True)
    await asyncio.sleep(10)
    assert (two.done[0][1].replicas, two.done[0][1].leave, one.nodes.pending("Worker")) == (3, (4,), False)
    assert wanted(one) == wanted(two) == {"one": 1, "two": 3}
    registry.revoke(one.leased.lease)
    assert (two.nodes.active, wanted(two)) == (True, {"two": 3})
    three = Node(registry, "three", tasks)
    await asyncio.sleep(1)
    assert three.done == [], "orders of others' time are not its own"
    two.nodes.order("Worker", {"three": Change(replicas=2)})
    await asyncio.sleep(1)
    assert wanted(two) == {"two": 3, "three": 2}
    assert len(two.done) == 1
    await asyncio.gather(*tasks)


@virtual
async def test_an_order_to_a_node_that_goes_or_says_nothing_does_not_wait_for_ever() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two = Node(registry, "one", tasks), Node(registry, "two", tasks, seconds=1000)
    one.nodes.order("Worker", {"two": Change(replicas=1)})
    await asyncio.sleep(99)
    assert one.nodes.pending("Worker")
    await asyncio.sleep(2)
    assert not one.nodes.pending("Worker")
    one.nodes.order("Worker", {"two": Change(replicas=2)})
    registry.revoke(two.leased.lease)
    assert not one.nodes.pending("Worker")
    for task in tasks:
        task.cancel()


@virtual
async def test_what_has_not_changed_is_not_put_again_and_what_nobody_understands_is_ignored() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, puts = Node(registry, "one", tasks), list[str]()
    registry.watch(PLANNERS, lambda key, _value: puts.append(key))
    before = len(puts)
    one.tell(0)
    assert len(puts) == before
    one.tell(1)
    one.tell(1)
    assert len(puts) == before + 1, "uptimes are not told"
    one.nodes.tell(None, {"Worker": 7})
    assert (len(puts), wanted(one)) == (before + 2, {"one": 1}), "who tells of no pools keeps them"
    registry.put(f"{PLANNERS}dynamo/agg/77", b"{]", registry.grant())
    assert one.nodes.active
