"""What metrics show of batches: those of the folder, and the lines that this process has answered."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .store import Store

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COMPLETED, FAILED = "completed", "failed"
"""Values of the label `status`, by which lines are counted."""


async def families(store: Store, answered: Counter[str], prefix: str) -> "Iterable[Metric]":
    """`answered`: lines by `status`. The folder is read in a thread; what cannot be read is left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    lines = CounterMetricFamily(
        f"{prefix}_batch_requests", "Lines of batches that this process has answered", labels=["status"]
    )
    for status in (COMPLETED, FAILED):
        lines.add_metric([status], answered[status])
    found: list[Metric] = [lines]
    readings: tuple[tuple[str, str, Callable[[], int]], ...] = (
        ("batches_open", "Batches that have not ended, of all frontends that share the folder", store.open),
        ("batch_files_bytes", "Bytes of all files of batches, of all frontends that share the folder", store.used),
    )
    for name, text, read in readings:
        try:
            found.append(GaugeMetricFamily(f"{prefix}_{name}", text, value=await asyncio.to_thread(read)))
        except OSError:
            continue
    return found
