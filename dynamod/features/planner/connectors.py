"""What runs the processes of pools: the daemon, an outside program that is told by etcd, or Kubernetes."""

import asyncio
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from dynamod.discovery.base import Registry
from dynamod.discovery.link import LinkRegistry
from dynamod.extension.installed import require
from dynamod.message.errors import UserError
from dynamod.message.pools import Pool, Replica
from dynamod.runtime.components.processes import Processes

from .records import Order
from .settings import PlannerSettings

log = logging.getLogger("dynamod.planner")

CONFIRM = 600.0
"""Seconds that an outside program has to confirm a decision."""


class Connector(Protocol):
    """`everywhere`: it answers for all nodes, so that only the planner that decides asks it.

    `switches`: it can have workers change their role.
    """

    everywhere: bool
    switches: bool

    async def pool(self, component: str, ready: Collection[int]) -> Pool | None:
        """The processes of a component; None where it has none. `ready`: leases. Raises DynamodError, TimeoutError."""

    async def scale(self, component: str, order: Order) -> None:
        """Do it, and come back when it is done. Raises DynamodError, TimeoutError."""


class Local:
    """The daemon of our node."""

    everywhere = False
    switches = True

    def __init__(self, registry: LinkRegistry, finish: float) -> None:
        self._processes, self._finish = Processes(registry), finish

    async def pool(self, component: str, ready: Collection[int]) -> Pool | None:
        """As it says; None for a component that is placed on other nodes."""
        try:
            return await self._processes.pool(component)
        except UserError:
            return None

    async def scale(self, component: str, order: Order) -> None:
        """Open streams get `finish` seconds."""
        processes, finish = self._processes, self._finish
        if order.switch:
            await processes.switch(component, order.switch, order.role, finish=finish)
        else:
            await processes.scale(component, order.replicas, leave=order.leave, finish=finish)


class Virtual:
    """An outside program, by keys under `v1/{namespace}/planner/` with numbers as text, as NVIDIA Dynamo writes them.

    `num_prefill_workers`, `num_decode_workers` and, last, `decision_id` are ours. The program does it and puts
    `scaled_decision_id`.
    """

    everywhere = True
    switches = False

    def __init__(self, registry: Registry, namespace: str, prefill: Collection[str]) -> None:
        self._registry, self._prefill, self._prefix = registry, prefill, f"v1/{namespace}/planner/"
        self._decision = self._scaled = 0
        self._confirmed = asyncio.Event()
        self._wanted: dict[str, int] = {}
        registry.watch(f"{self._prefix}scaled_decision_id", self._confirm)

    def _confirm(self, _key: str, value: bytes | None) -> None:
        text = (value or b"").strip()
        self._scaled = int(text) if text.isdigit() else 0
        self._confirmed.set()

    async def pool(self, component: str, ready: Collection[int]) -> Pool | None:
        """The ready workers, and the workers that the outside program has confirmed and that are not ready yet."""
        return _pool(ready, self._wanted.get(component, len(ready)))

    async def scale(self, component: str, order: Order) -> None:
        """Put the numbers and wait for the confirmation."""
        self._decision = max(self._decision + 1, self._scaled + 1)
        name = "num_prefill_workers" if component in self._prefill else "num_decode_workers"
        self._registry.put(f"{self._prefix}{name}", str(order.replicas).encode())
        self._registry.put(f"{self._prefix}decision_id", str(self._decision).encode())
        decision = self._decision
        async with asyncio.timeout(CONFIRM):
            while self._scaled < decision:
                self._confirmed.clear()
                await self._confirmed.wait()
        self._wanted[component] = order.replicas


class Kubernetes:
    """Workloads of a cluster, by the feature `kubernetes`. `workloads`: by component, NAME or statefulset/NAME."""

    everywhere = True
    switches = False

    def __init__(self, url: str, namespace: str, workloads: Mapping[str, str]) -> None:
        """Raises UserError."""
        require("kubernetes", "environment: kubernetes")
        from dynamod.features.kubernetes import scaling

        self._workloads = workloads
        for one in workloads.values():
            scaling.workload(one)
        self._scaler = scaling.Scaler(os.environ, "environment: kubernetes", url=url, namespace=namespace)

    async def pool(self, component: str, ready: Collection[int]) -> Pool | None:
        """The ready workers, and the further replicas that the workload has or will have."""
        return _pool(ready, (await self._scaler.numbers(self._workload(component))).wanted)

    async def scale(self, component: str, order: Order) -> None:
        """Kubernetes drains pods by their grace period."""
        await self._scaler.scale(self._workload(component), order.replicas)

    def _workload(self, component: str) -> str:
        return self._workloads.get(component, component.lower())


def _pool(ready: Collection[int], wanted: int) -> Pool:
    """A process for each that is ready, and others that start; those above `wanted` are about to go."""
    there: Sequence[Replica] = [
        Replica(replica=number, state="Ready" if number < wanted else "Draining", lease=lease)
        for number, lease in enumerate(sorted(ready))
    ]
    coming = [Replica(replica=number, state="Starting") for number in range(len(ready), wanted)]
    return Pool(replicas=(*there, *coming))


def connector(settings: PlannerSettings, registry: LinkRegistry, namespace: str, prefill: Collection[str]) -> Connector:
    """What `environment` names. `prefill`: components of prefill workers. Raises UserError."""
    match settings.environment:
        case "virtual":
            return Virtual(registry, namespace, prefill)
        case "kubernetes":
            return Kubernetes(settings.kubernetes_url, settings.kubernetes_namespace, settings.kubernetes_deployments)
        case _:
            return Local(registry, settings.drain_timeout)
