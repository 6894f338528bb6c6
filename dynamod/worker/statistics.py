"""What a worker counts: metrics, `dynamo ps` and `dynamo inspect` show it."""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.engine.base import EngineStatistics
from dynamod.message.kv_events import ForwardPass
from dynamod.observe.metrics import DURATION, Buckets, Histogram


@dataclass(slots=True)
class RequestCounts:
    """Requests of a worker: taken, cancelled by their readers, refused. `durations`: seconds until their ends."""

    accepted: int = 0
    cancelled: int = 0
    refused: int = 0
    durations: Histogram = field(default_factory=lambda: Histogram(DURATION))


class WorkerStatistics(msgspec.Struct, frozen=True):
    """Requests taken, open now, cancelled by their readers, refused; subscribers; and the engine's own.

    `handoff`: of hand-offs between workers, as a part counts them; None where there was none.
    `pool`: its disaggregation mode, empty for an aggregated worker. `role_switches`: how often that has changed.
    `steps`: of the ranks, as far as they are known.
    `model`: its name.
    """

    accepted: Annotated[Total, Meta(description="Requests that were taken.")]
    open: Annotated[int, Meta(description="Open requests.")]
    cancelled: Annotated[Total, Meta(description="Requests that their reader cancelled.")]
    refused: Annotated[Total, Meta(description="Requests that were refused.")]
    feeds: Annotated[int, Meta(description="Subscribers of the worker's events.")]
    engine: EngineStatistics
    handoff: msgspec.Struct | None = None
    pool: str = ""
    role_switches: Annotated[Total, Meta(description="Changes of the disaggregation mode.")] = 0
    steps: tuple[ForwardPass, ...] = ()
    model: str = ""
    request_duration_seconds: Annotated[
        Buckets | None, Meta(description="From a request's acceptance to the end of its answer.")
    ] = None
