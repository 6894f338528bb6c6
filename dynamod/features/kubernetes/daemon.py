"""Tells Kubernetes what a pod has to do, so that a smaller Deployment loses the pod with least work.

The controller of ReplicaSets compares the annotation `controller.kubernetes.io/pod-deletion-cost` of pods when some of
them must go, so a number that is some seconds old is good enough.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dynamod.daemon.parts import DaemonPart
from dynamod.message.errors import DynamodError, UserError

from .settings import COST_VARIABLE, KubernetesSettings

if TYPE_CHECKING:
    from dynamod.daemon.node import Node
    from dynamod.message.rows import Row

log = logging.getLogger("dynamod.daemon")

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
INTERVAL_S = 5.0
"""Seconds between looks; each between a half and one and a half of it."""
RETRY_AT_MOST_S = 300.0
"""Seconds between attempts after a refusal, at most."""
EXACT = 16
"""Requests up to which each one counts: above, the number is rounded to a sixteenth, which spares writes."""


def cost(rows: "Iterable[Row]") -> int:
    """Requests that the processes of a node run and that wait there, rounded."""
    requests = sum(row.running + row.waiting for row in {row.process: row for row in rows}.values())
    step = 1 << max(0, requests.bit_length() - EXACT.bit_length())
    return requests // step * step


class KubernetesPart(DaemonPart):
    """Writes the deletion cost of this pod, where DYNAMOD_KUBERNETES_COST is true."""

    def __init__(self, node: "Node") -> None:
        """Raises UserError for a wrong variable."""
        super().__init__(node)
        said = os.environ.get(COST_VARIABLE, "").strip().lower()
        if said not in ("", "true", "false"):
            raise UserError(f"{COST_VARIABLE} is {said!r}", "write true or false")
        self._settings = KubernetesSettings.from_environment(os.environ) if said == "true" else None
        self.written: int | None = None
        self._error = ""

    async def started(self) -> None:
        """Begin to write, where that is on."""
        if self._settings is not None:
            self.context.task(self._write(self._settings), "deletion cost")

    def inspection(self) -> dict[str, Any]:
        """What was written last, and why nothing is written."""
        return {"cost": self.written, "last_error": self._error}

    async def _write(self, settings: KubernetesSettings) -> None:
        from .api import Api
        from .resources import PODS

        pause = INTERVAL_S
        async with Api(settings) as api:
            while True:
                await asyncio.sleep(pause * self.context.random.uniform(0.5, 1.5))
                now = cost(self.node.graphs.rows())
                if now == self.written:
                    continue
                try:
                    await api.merge(PODS, settings.pod, {"metadata": {"annotations": {ANNOTATION: str(now)}}})
                except DynamodError as error:
                    if not self._error:
                        log.warning("Kubernetes: the deletion cost of this pod is not written: %s", error)
                    self._error, pause = str(error), min(pause * 2, RETRY_AT_MOST_S)
                else:
                    self.written, self._error, pause = now, "", INTERVAL_S
