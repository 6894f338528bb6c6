"""What routing and migration cost, per model. `router_metrics` shows it when it is scraped."""

from collections import Counter

from dynamod.http.metrics import DURATION, Histogram

OVERHEAD = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0)
"""Milliseconds, as the original's `dynamo_router_overhead_*_ms` are."""


class Overhead:
    """What routing costs, in milliseconds: the hashes of a prompt's blocks, and the decision with its bookkeeping."""

    __slots__ = ("block_hashing", "scheduling")

    def __init__(self) -> None:
        self.block_hashing = Histogram(OVERHEAD)
        self.scheduling = Histogram(OVERHEAD)


class MigrationCounts:
    """Requests that moved to another instance, before their first token and behind it, and how long that took."""

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


class PeerCounts:
    """Prompts of a model of which another worker gave blocks, those blocks as they were known, and how often none came.

    What has really been read the workers count.
    """

    __slots__ = ("blocks", "failed", "fetches")

    def __init__(self) -> None:
        self.fetches = self.blocks = self.failed = 0


class PrefillCounts:
    """Prompts of a model that prefill workers computed, and that stayed at the answering worker, by why."""

    __slots__ = ("failed", "local", "remote", "tokens")

    def __init__(self) -> None:
        self.remote = self.tokens = self.failed = 0
        self.local: Counter[str] = Counter()
