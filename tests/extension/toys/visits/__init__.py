"""A toy that has a part in each worker."""

from dynamod.extension.feature import Feature


def _worker() -> type:
    from .worker import VisitsOfWorker

    return VisitsOfWorker


FEATURE = Feature("visits", "a toy in workers", worker=_worker)
