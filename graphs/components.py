"""The services that the shipped graphs are made of, and the settings that each takes in a config file.

Each is run by an actor of dynamod: `actor=` names its kind, see `dynamod.runtime.components`. The kind of a feature
brings the settings, too. A service of your own is a plain class with endpoints instead.
"""

from typing import Any

from dynamod.graph.service import depends, endpoint, service
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.settings import ProcessorSettings
from dynamod.worker.settings import WorkerSettings


@service(
    dynamo={"namespace": "dynamo", "component_type": "worker"},
    config=WorkerSettings,
    actor="worker",
)
class Worker:
    """Runs an engine in a process of its own."""

    @endpoint()
    async def generate(self, request: dict[str, Any]) -> Any:
        """Served by the actor."""

    @endpoint()
    async def load_metrics(self, request: dict[str, Any]) -> Any:
        """Served by the actor: one item, the engine's load as ForwardPassMetrics."""


@service(
    dynamo={"namespace": "dynamo", "component_type": "prefill"},
    config=WorkerSettings,
    actor="worker",
)
class PrefillWorker:
    """Computes prompts for the workers of the model, which read the KV blocks from it."""

    @endpoint()
    async def generate(self, request: dict[str, Any]) -> Any:
        """Served by the actor."""


@service(
    dynamo={"namespace": "dynamo"},
    actor="planner",
    placement="own",
)
class Planner:
    """Decides how many workers the pools have that it is linked to."""

    worker = depends(Worker)
    prefill_worker = depends(PrefillWorker)


@service(
    dynamo={"namespace": "dynamo"},
    config=ProcessorSettings,
    actor="processor",
)
class Processor:
    """Prepares requests and sends them to workers."""

    worker = depends(Worker)


@service(
    dynamo={"namespace": "dynamo"},
    config=FrontendSettings,
    actor="frontend",
)
class Frontend:
    """Listens for OpenAI clients."""

    processor = depends(Processor)
