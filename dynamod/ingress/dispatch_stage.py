"""What a feature does at the dispatcher: it may take requests over, and keep an instance from other requests."""

import asyncio
from dataclasses import dataclass, field
from math import inf

from dynamod.router.placement import Acquire, Placement

Key = tuple[str, str]
"""Model and pool."""


@dataclass(slots=True, order=True)
class Waiting:
    """A request that waits for its place. The lowest rank is served first.

    `since`: start of the wait. `until`: when the wait ends without a place. Both are seconds of the loop's clock.
    """

    rank: tuple[int, int]
    message: Acquire = field(compare=False)
    turn: asyncio.Future[Placement] = field(compare=False)
    since: float = field(compare=False, default=0.0)
    until: float = field(compare=False, default=inf)


class DispatchStage:
    """The methods here change nothing; a subclass overrides what it needs."""

    def acquire(self, key: Key, message: Acquire) -> asyncio.Future[Placement] | None:
        """Look at a request that asks for a place. Returns its later place where the stage takes the request over."""
        return None

    def reserved(self, key: Key) -> int | None:
        """The instance that takes only requests which are `alone`. It comes back soon."""
        return None

    def waiting(self, key: Key) -> int:
        """Requests that wait at the stage."""
        return 0

    def load_fell(self, key: Key) -> None:
        """An instance may have become free, or instances have come or gone."""
