"""Whether what a controller proposes is done now, and with which processes. Pure: the caller has the clock."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from dynamod.message.pools import Pool, Replica

from .observation import WorkerLoad
from .settings import PlannerSettings

BACKOFF, LONGEST = 30.0, 600.0
"""Seconds until workers are started again that did not become ready; twice as long each time."""

ATTEMPTS = 5
"""After so many times in a row nothing is started any more, until `resume`."""

Refusal = Literal[
    "",
    "disabled",
    "paused",
    "manual",
    "scaling_in_progress",
    "worker_count_mismatch",
    "workers_fail",
    "no_devices",
    "budget_used",
    "cluster_lost",
]


Held = Literal["", "paused", "manual"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is to run: a number of processes. `leave`: processes that go first, by number; `guests`: processes of
    another component. `switch`: the same processes, with `role` from then on.
    """

    replicas: int
    leave: tuple[int, ...] = ()
    guests: tuple[int, ...] = ()
    switch: tuple[int, ...] = ()
    role: str = ""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """`changes`: by node. `refused`: why what was proposed is not done, or not all of it."""

    changes: dict[str, Change] = {}
    refused: Refusal = ""


Pools = Mapping[str, Pool]
"""Those of a component, by node."""


def starting(pools: Pools, ready: Collection[int]) -> int:
    """Processes that will be ready, or are without having been seen yet. `ready`: leases."""
    replicas = [one for pool in pools.values() for one in pool.replicas]
    return sum(one.state not in ("Draining", "Fatal") and one.lease not in ready for one in replicas)


class Reconciler:
    """`paused`, `manual`: nothing is changed until `resume`; `manual` after the number was changed by hand."""

    def __init__(self, settings: PlannerSettings) -> None:
        self.settings = settings
        self.paused = self.manual = self.in_progress = False
        self.failures, self._retry = 0, 0.0
        self._own: dict[str, int] = {}  # what nodes were to run, as far as we know
        self._by_hand: dict[str, int] = {}  # changes without a planner's order that are known, by node
        self._ready: Collection[int] | None = None
        self._states: dict[tuple[str, int], str] = {}  # of processes at the last tick, by node and number

    @property
    def held(self) -> Held:
        """Why nothing is changed on purpose; empty when the planner decides."""
        return "paused" if self.paused else "manual" if self.manual else ""

    def take_over(self, held: str) -> None:
        """Continue for a planner that was held so."""
        self.paused = self.paused or held == "paused"
        self.manual = self.manual or held == "manual"

    def resume(self) -> None:
        """Take over again, from what there is."""
        self.paused = self.manual = False
        self.failures, self._retry = 0, 0.0
        self.settled()

    def decide(self, now: float, target: int, pools: Pools, loads: Mapping[int, WorkerLoad]) -> Action:
        """`target`: ready and starting workers in all. `loads`: of the ready ones, by lease, of all nodes."""
        self._look(pools)
        settled, self._ready = self._settled(loads), loads.keys()
        here = {one.lease for pool in pools.values() for one in pool.replicas}
        expected, there = len(loads) + starting(pools, loads.keys()), sum(pool.wanted for pool in pools.values())
        if self.in_progress:
            return Action(refused="scaling_in_progress" if target != expected else "")
        self._notice(pools)
        failed = any(one.state == "Fatal" for pool in pools.values() for one in pool.replicas)
        wanted = max(0, target - sum(lease not in here for lease in loads))
        if not failed and wanted == there:
            return Action(refused="manual" if self.manual and target != expected else "")
        if why := self._held(pools):
            return Action(refused=why)
        if failed:
            return self._drop(now, pools)
        if wanted > there:
            return self._more(now, wanted - there, pools)
        if not settled:
            return Action(refused="worker_count_mismatch")
        return self._less(there - wanted, pools, loads)

    def refusal(self, pools: Pools, loads: Mapping[int, WorkerLoad]) -> Refusal:
        """Why no worker may come from another pool now, or go there. To be asked before `decide`."""
        if self.in_progress:
            return "scaling_in_progress"
        self._notice(pools)
        if any(one.state == "Fatal" for pool in pools.values() for one in pool.replicas):
            return "workers_fail"
        return self._held(pools) or ("" if self._settled(loads) else "worker_count_mismatch")

    def _settled(self, loads: Mapping[int, WorkerLoad]) -> bool:
        """Whether the ready workers are those of the last tick."""
        return self._ready is None or self._ready == loads.keys()

    def _notice(self, pools: Pools) -> None:
        """Whether something else than a planner has changed the number of processes.

        Nodes count that. The own orders do not tell it: what a planner that died has ordered may still be under way.
        """
        self._own = {node: self._own.get(node, pool.wanted) for node, pool in pools.items()}
        counts = {node: pool.by_hand for node, pool in pools.items() if pool.by_hand is not None}
        self._by_hand = {node: self._by_hand.get(node, count) for node, count in counts.items()}
        for node, pool in pools.items():
            known, found = (self._own, pool.wanted) if pool.by_hand is None else (self._by_hand, pool.by_hand)
            self.manual = self.manual or known[node] != found

    def _look(self, pools: Pools) -> None:
        """Whether a worker has become ready since the last tick, on any node."""
        before, nodes = self._states, {node for node, _ in self._states}
        self._states = {(node, one.replica): one.state for node, pool in pools.items() for one in pool.replicas}
        for key, state in self._states.items():
            coming = before.get(key, "Starting") in ("Starting", "Restarting")
            if state == "Ready" and coming and key[0] in nodes:
                self.came_up()

    def _held(self, pools: Pools) -> Refusal:
        if self.settings.no_operation or self.settings.advisory:
            return "disabled"
        if any(pool.alone for pool in pools.values()):
            return "cluster_lost"
        return self.held

    def _drop(self, now: float, pools: Pools) -> Action:
        """Give up processes that did not become ready; other processes are started instead after a while."""
        self.failures += 1
        self._retry = now + min(LONGEST, BACKOFF * 2 ** (self.failures - 1))
        leave = [(node, one) for node, pool in pools.items() for one in pool.replicas if one.state == "Fatal"]
        return self._leave(pools, leave, "workers_fail")

    def _more(self, now: float, more: int, pools: Pools) -> Action:
        """Each process goes to the node with room for most; without counts, to the node with the fewest processes."""
        if now < self._retry or self.failures >= ATTEMPTS:
            return Action(refused="workers_fail")
        added: Counter[str] = Counter()
        refused: Refusal = ""
        for _ in range(more):
            room = {
                node: (math.inf if pool.free is None else pool.free - added[node], -pool.wanted - added[node])
                for node, pool in pools.items()
                if pool.free is None or pool.free > added[node]
            }
            if not room:
                refused = "no_devices"
                break
            added[max(room, key=lambda node: room[node])] += 1
        changes = {node: Change(replicas=pools[node].wanted + count) for node, count in added.items()}
        return self._act(changes, refused)

    def _less(self, fewer: int, pools: Pools, loads: Mapping[int, WorkerLoad]) -> Action:
        """Processes that are not ready go first, then the processes with the fewest KV tokens."""
        there = [(node, one) for node, pool in pools.items() for one in pool.replicas if one.state != "Draining"]
        there.sort(key=lambda one: (one[1].lease in loads, tokens(loads.get(one[1].lease)), -one[1].replica))
        return self._leave(pools, there[:fewer])

    def _leave(self, pools: Pools, leave: Sequence[tuple[str, Replica]], refused: Refusal = "") -> Action:
        changes: dict[str, Change] = {}
        for node, pool in pools.items():
            gone = [one for where, one in leave if where == node]
            if gone:
                own, guests = (tuple(one.replica for one in gone if one.guest is guest) for guest in (False, True))
                changes[node] = Change(replicas=pool.wanted - len(gone), leave=own, guests=guests)
        return self._act(changes, refused)

    def _act(self, changes: dict[str, Change], refused: Refusal) -> Action:
        self._own |= {node: change.replicas for node, change in changes.items()}
        return Action(changes=changes, refused=refused)

    def came_up(self) -> None:
        """A worker has become ready."""
        self.failures, self._retry = 0, 0.0

    def settled(self) -> None:
        """What was decided is done, or could not be: whatever there is now is the start."""
        self._own.clear()
        self._by_hand.clear()


def tokens(load: WorkerLoad | None) -> int:
    """What a worker has to do."""
    return load.context + load.queued_prefill if load is not None else 0
