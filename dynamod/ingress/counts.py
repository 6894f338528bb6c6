"""What preprocessing, routing and migration cost, per model, for `router_metrics`; and per request, for `explain`."""

from collections import OrderedDict
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from dynamod.observe.bounded import bounded
from dynamod.observe.metrics import DURATION, Histogram
from dynamod.observe.timeline import Timeline

OVERHEAD = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0)
"""Milliseconds, as NVIDIA Dynamo's `dynamo_router_overhead_*_ms` are."""


STAGE = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0)
TOKENIZE = STAGE[:9]
TEMPLATE = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05)
"""Seconds; the bounds of these and of the hit rate are NVIDIA Dynamo's."""

HIT_RATE = tuple(round(step / 20, 2) for step in range(21))

DELAY = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
STALL = 0.05
"""Seconds by which a timer of the event loop may be late; above that the loop has stalled."""


class Stage:
    """A part of the way of a request: how many are in it now, and the seconds that those before have taken."""

    __slots__ = ("inside", "taken")

    def __init__(self) -> None:
        self.inside = 0
        self.taken = Histogram(STAGE)

    def enter(self) -> float:
        """A request is in it; returns what `leave` is given."""
        self.inside += 1
        return perf_counter()

    def leave(self, entered: float) -> None:
        """A request has left, in whatever way."""
        self.inside -= 1
        self.taken.observe(perf_counter() - entered)


class Preparation:
    """How a request becomes tokens: seconds of the chat template with the checks before it, and of the tokenizer."""

    __slots__ = ("template", "tokenize")

    def __init__(self) -> None:
        self.template, self.tokenize = Histogram(TEMPLATE), Histogram(TOKENIZE)


class LoopDelay:
    """How late the event loop of this process is."""

    __slots__ = ("late", "stalls")

    def __init__(self) -> None:
        self.late, self.stalls = Histogram(DELAY), 0

    def observe(self, seconds: float) -> None:
        """A timer came so late."""
        self.late.observe(max(0.0, seconds))
        self.stalls += seconds > STALL


class Overhead:
    """What routing costs, in milliseconds: the hashes of a prompt's blocks, and the decision with its bookkeeping."""

    __slots__ = ("block_hashing", "scheduling")

    def __init__(self) -> None:
        self.block_hashing = Histogram(OVERHEAD)
        self.scheduling = Histogram(OVERHEAD)


class MigrationCounts:
    """Requests that moved to another instance, before their first token and after it, and how long that took."""

    __slots__ = ("failed", "long", "new", "ongoing", "taken")

    def __init__(self) -> None:
        self.new = self.ongoing = self.long = 0
        self.taken, self.failed = Histogram(DURATION), Histogram(DURATION)

    def broke(self, ongoing: bool) -> None:
        """A request is sent again; `ongoing`: part of its answer had come."""
        if ongoing:
            self.ongoing += 1
        else:
            self.new += 1

    def too_long(self) -> None:
        """An answer could not move because of its length."""
        self.long += 1

    def settled(self, seconds: float, ok: bool) -> None:
        """Another instance has taken it (or none has) that long after the stream broke."""
        (self.taken if ok else self.failed).observe(seconds)


class Timelines:
    """The timelines of the last `capacity` requests to engines, by their ids."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[str, Timeline] = OrderedDict()
        bounded(self, "kept timelines", capacity, len, "requests")

    def keep(self, request: str, timeline: Timeline) -> None:
        """Keep one. Another one of the same id takes its place."""
        self._kept[request] = timeline
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def told(self, request: str) -> Mapping[str, Any] | None:
        """Where the time of a request went, in milliseconds; None: it is not known (any more).

        `open`: it has not ended.
        """
        timeline = self._kept.get(request)
        if timeline is None:
            return None
        phases = {name: round(seconds * 1000, 3) for name, seconds in timeline.phases().items()}
        return {"total_ms": round(sum(phases.values()), 3), "open": not timeline.ended, "phases_ms": phases}

    def __len__(self) -> int:
        return len(self._kept)
