"""Planners of one graph on several nodes: one decides, each does what concerns its node."""

import asyncio
import random
from typing import Any

from dynamod.actor.testing import virtual
from dynamod.discovery.memory import MemoryRegistry
from dynamod.features.planner.nodes import LISTED, PlannerNodes
from dynamod.features.planner.reconcile import Change
from dynamod.features.planner.records import PLANNERS, Order
from dynamod.message.pools import Pool, Replica


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

    def __init__(
        self, registry: MemoryRegistry, name: str, tasks: list[Any], seconds: float = 0.0, clock: float = 0.0
    ) -> None:
        self.leased, self.done, self.seconds = Leased(registry), list[tuple[str, Order]](), seconds
        self.clock = clock  # by how many seconds it is wrong
        spawn = lambda work, _name: tasks.append(asyncio.ensure_future(work))  # noqa: E731
        place = ("dynamo", "agg", self.leased.lease)
        self.nodes = PlannerNodes(self.leased, place, name, self.apply, spawn, 100.0, self.time)
        self.tell(0)

    def time(self) -> float:
        return 1e9 + self.clock + asyncio.get_running_loop().time()

    def tell(self, count: int, done: dict[str, int] | None = None) -> None:
        replicas = tuple(Replica(replica=n, state="Ready", uptime=random.random()) for n in range(count))
        self.nodes.tell({"Worker": Pool(replicas=replicas, gpus=2)}, done)

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


def replicas(node: Node) -> list[int]:
    """Of the orders that it has done."""
    return [order.replicas for _, order in node.done]


@virtual
async def test_what_a_node_was_ordered_takes_devices_that_it_still_lists_as_free() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one = Node(registry, "one", tasks)
    Node(registry, "two", tasks, seconds=5.0)
    one.nodes.order("Worker", {"one": Change(replicas=1), "two": Change(replicas=3)})
    assert one.nodes.promised("Worker") == {"one": 2, "two": 6}
    assert one.nodes.promised("Other") == {}
    await asyncio.sleep(1)
    assert one.nodes.promised("Worker") == {"two": 6}
    await asyncio.sleep(5)
    assert (one.nodes.promised("Worker"), wanted(one)) == ({}, {"one": 1, "two": 3})
    one.nodes.order("Worker", {"two": Change(replicas=2, leave=(1,))})
    assert one.nodes.promised("Worker") == {}, "fewer take nothing"
    await asyncio.gather(*tasks)


@virtual
async def test_an_order_counts_whatever_the_clock_of_its_planner_says() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    ahead = Node(registry, "ahead", tasks, clock=-3600)  # the oldest
    two, three = Node(registry, "two", tasks), Node(registry, "three", tasks)
    ahead.clock = 3600
    ahead.nodes.order("Worker", {"three": Change(replicas=1)})
    await asyncio.sleep(1)
    registry.revoke(ahead.leased.lease)
    two.nodes.order("Worker", {"three": Change(replicas=2)})
    await asyncio.sleep(1)
    assert (replicas(three), two.nodes.pending("Worker")) == ([1, 2], False)


@virtual
async def test_what_a_planner_was_to_do_that_has_gone_is_not_waited_for() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two = Node(registry, "one", tasks), Node(registry, "two", tasks, seconds=10)
    one.nodes.order("Worker", {"two": Change(replicas=1)})
    await asyncio.sleep(1)
    registry.revoke(two.leased.lease)
    Node(registry, "two", tasks)
    assert not one.nodes.pending("Worker")
    for task in tasks:
        task.cancel()


@virtual
async def test_who_takes_over_waits_for_what_was_ordered_before() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two, three = (Node(registry, name, tasks, seconds=10) for name in ("one", "two", "three"))
    one.nodes.order("Worker", {"three": Change(replicas=1)})
    await asyncio.sleep(1)
    assert two.nodes.pending("Worker"), "it knows what is done, though it does not decide"
    registry.revoke(one.leased.lease)
    assert (two.nodes.active, two.nodes.pending("Worker")) == (True, True)
    await asyncio.sleep(10)
    assert (replicas(three), two.nodes.pending("Worker")) == ([1], False)


@virtual
async def test_an_order_from_before_another_planner_decided_is_not_done_any_more() -> None:
    """Its planner was away when it gave it, and is back."""
    registry, away, tasks = MemoryRegistry(random.Random(1)), MemoryRegistry(random.Random(2)), list[Any]()
    one, two, three = (Node(registry, name, tasks) for name in ("one", "two", "three"))
    ((key, _),) = registry.items(f"{PLANNERS}dynamo/agg/{one.leased.lease:x}")
    registry.revoke(one.leased.lease)
    one.leased.registry, one.leased.lease = away, away.grant()  # what it puts reaches nobody
    one.nodes.order("Worker", {"three": Change(replicas=5)})
    await asyncio.sleep(1)
    two.nodes.order("Worker", {"two": Change(replicas=2)})
    await asyncio.sleep(1)
    registry.put(key, away.items(PLANNERS)[0][1], registry.grant())
    await asyncio.sleep(1)
    assert (replicas(two), replicas(three), two.nodes.active) == ([2], [], False)


@virtual
async def test_what_another_planner_has_decided_since_ends_the_wait_for_an_order() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two = Node(registry, "one", tasks), Node(registry, "two", tasks, seconds=50)
    one.nodes.order("Worker", {"two": Change(replicas=5)})
    await asyncio.sleep(60)
    tasks.clear()
    two.nodes.order("Worker", {"two": Change(replicas=2)})
    one.nodes.order("Worker", {"nobody": Change(replicas=2)})
    assert one.nodes.pending("Worker"), "two still does its own"
    await asyncio.sleep(60)
    assert not one.nodes.pending("Worker")
    await asyncio.gather(*tasks)


@virtual
async def test_an_order_counts_though_its_planner_has_not_seen_those_before() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two = Node(registry, "one", tasks, clock=-1), Node(registry, "two", tasks)
    one.clock = 3600
    one.nodes.order("Worker", {"one": Change(replicas=1)})
    registry.revoke(one.leased.lease)
    three = Node(registry, "three", tasks, clock=-10)
    three.nodes.order("Worker", {"two": Change(replicas=2)})
    await asyncio.sleep(1)
    assert (replicas(two), three.nodes.pending("Worker")) == ([2], False)
    for task in tasks:
        task.cancel()


@virtual
async def test_it_is_known_when_planners_came_and_went_or_the_node_was_alone() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, now = Node(registry, "one", tasks), asyncio.get_running_loop().time
    await asyncio.sleep(5)
    two = Node(registry, "two", tasks)
    assert one.nodes.changed == now()
    await asyncio.sleep(5)
    two.tell(1)
    one.tell(1)
    assert one.nodes.changed == now() - 5
    registry.revoke(two.leased.lease)
    assert one.nodes.changed == now()
    await asyncio.sleep(5)
    one.nodes.tell({"Worker": Pool(replicas=(), alone=True)})
    assert one.nodes.changed == now() + LISTED, "workers that ended meanwhile are listed so long"
    Node(registry, "three", tasks)
    assert one.nodes.changed == now() + LISTED


@virtual
async def test_what_people_have_held_is_known_to_who_takes_over() -> None:
    registry, tasks = MemoryRegistry(random.Random(1)), list[Any]()
    one, two, three = (Node(registry, name, tasks) for name in ("one", "two", "three"))
    one.nodes.hold({"Worker": "paused"})
    two.nodes.hold({"Worker": "manual"})
    assert (two.nodes.held, three.nodes.held) == ({"Worker": "paused"}, {"Worker": "paused"}), "of who decides"
    registry.revoke(one.leased.lease)
    assert (two.nodes.active, two.nodes.held) == (True, {"Worker": "paused"})
    assert three.nodes.held == {"Worker": "manual"}
    two.nodes.hold({})
    assert three.nodes.held == {}
