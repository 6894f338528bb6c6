"""What a processor is asked by messages, and what it says of itself."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.message.waits import Waits


class ProcessorStatistics(msgspec.Struct, frozen=True):
    """Requests taken, choices in flight, choices completed, models ready.

    `unloaded`: why models are not, by name. `loading`: models that are being loaded. `waits`: requests without a token.
    """

    requests: Annotated[Total, Meta(description="Requests that were taken.")]
    flights: Annotated[int, Meta(description="Requests at an instance or on their way to one.")]
    landed: Annotated[Total, Meta(description="Requests that ended.")]
    models: Annotated[int, Meta(description="Models that can be asked.")]
    unloaded: dict[str, str]
    loading: tuple[str, ...] = ()
    waits: tuple[Waits, ...] = ()


@dataclass(frozen=True, slots=True)
class Explain:
    """Ask for the decisions about a request, as JSON-like records; the `id` of its answer will do too.

    The first record says as `times` where the time of the request went (`counts.Timelines.told`).
    """

    request: str


@dataclass(frozen=True, slots=True)
class GetBackend:
    """Ask for the `processor.ProcessorBackend` by which requests come."""
