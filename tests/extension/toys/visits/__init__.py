"""A toy that has a part in each worker and in each processor, and a route that asks the latter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from dynamod.ingress.parts import ProcessorContext


def _endpoints() -> Sequence[object]:
    from .endpoints import Visits

    return (Visits(),)


def _processor(context: "ProcessorContext") -> object:
    from .ingress import VisitsOfProcessor

    return VisitsOfProcessor(context)


def _worker() -> type:
    from .worker import VisitsOfWorker

    return VisitsOfWorker


FEATURE = Feature("visits", "a toy: /v1/visits", endpoints=_endpoints, processor=_processor, worker=_worker)
