"""Models whose workers are workloads of a cluster: desired replicas by the `scale` subresource."""

import asyncio
import os
from collections.abc import Mapping

from dynamod.extension.installed import require
from dynamod.message.errors import DynamodError
from dynamod.message.pools import Pool, Replica

from .keeper import Workers

LOOK_S = 1.0
"""Seconds between looks at pods that leave."""
LEAVE_S = 900.0
"""Seconds that pods have to leave: open answers finish first."""


class Workloads:
    """The `Workers` of a keeper. `targets`: by component, like statefulset/NAME; the others are `processes`."""

    def __init__(self, targets: Mapping[str, str], processes: Workers) -> None:
        """Raises UserError for a target that names no workload, and where no API server is known."""
        require("kubernetes", "models: workload")
        from dynamod.features.kubernetes import scaling

        self._targets, self._processes = targets, processes
        for one in targets.values():
            scaling.workload(one)
        self._scaler = scaling.Scaler(os.environ, "a model has a workload of Kubernetes")

    async def scale(self, component: str, replicas: int) -> None:
        """Write the number; with 0, return when the pods have gone. Raises DynamodError."""
        if (target := self._targets.get(component)) is None:
            await self._processes.scale(component, replicas)
            return
        await self._scaler.scale(target, replicas)
        try:
            async with asyncio.timeout(LEAVE_S):
                while not replicas and (await self._scaler.numbers(target)).there:  # noqa: ASYNC110 - asked of a server
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise DynamodError(f"pods of {target} have not left within {LEAVE_S:g} s") from None

    async def pool(self, component: str) -> Pool:
        """Pods as processes: those above the wanted number leave. Raises DynamodError."""
        if (target := self._targets.get(component)) is None:
            return await self._processes.pool(component)
        found = await self._scaler.numbers(target)
        states = ["Starting" if number < found.wanted else "Draining" for number in range(max(found))]
        return Pool(replicas=tuple(Replica(replica=number, state=state) for number, state in enumerate(states)))
