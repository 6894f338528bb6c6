"""Models that are loaded on demand: each one of `models:` in the config is a worker of its own, without processes.

`dynamo serve -f configs/models.yaml` serves this graph; no target is needed where a config has `models:`.
"""

from dynamod.graph.service import depends, service
from graphs.components import Frontend, Worker


@service(
    dynamo={"namespace": "dynamo"},
    actor="ondemand",
)
class Processor:
    """Prepares requests, has their models loaded and sends them to workers."""

    worker = depends(Worker)


Frontend.link(Processor).link(Worker)  # type: ignore[attr-defined]  # mypy does not see what class decorators return
