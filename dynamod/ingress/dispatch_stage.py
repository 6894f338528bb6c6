"""What a feature does at the dispatcher: it may take requests over, and keep an instance from other requests."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from dynamod.migration.stages import overriding
from dynamod.observe.metrics import Row
from dynamod.router.decision import Decision
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
    """The methods here change nothing; a subclass overrides what it needs.

    `order`: the stage with the lowest one is asked first. `needs_blocks`: prompts must come with the hashes of their
    blocks, and the events of workers are followed.
    """

    order: ClassVar[int] = 0
    needs_blocks = False

    def acquire(self, key: Key, message: Acquire) -> Any:
        """Look at a request that asks for a place.

        Returns the reply where the stage takes the request over: a place, now or as a future, or what else the stage
        has told the asker to expect. None: the next stage is asked.
        """
        return None

    def decided(self, key: Key, message: Acquire, decision: Decision, exclude: Collection[int]) -> Decision:
        """Look at a decision before the request is counted as load. Returns it, maybe with more in it.

        `exclude`: instances that do not take the request.
        """
        return decision

    def reserved(self, key: Key) -> int | None:
        """The instance that takes only requests which are `alone`. It comes back soon."""
        return None

    def waiting(self, key: Key) -> int:
        """Requests that wait at the stage."""
        return 0

    def load_fell(self, key: Key) -> None:
        """An instance may have become free, or instances have come or gone."""

    def rows(self, model: str, prefix: str, labels: dict[str, str]) -> Iterable[Row]:
        """What metrics show of a model. `prefix`, `labels`: those of the model's other rows."""
        return ()


class DispatchStages(dict[str, DispatchStage]):
    """The stages of a dispatcher by the names of their features, in their order.

    `taking`, `looking`, `reserving`, `waking`: the stages with an `acquire`, `decided`, `reserved` or `load_fell` of
    their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fill({})

    def fill(self, stages: Mapping[str, DispatchStage]) -> None:
        """Have these stages, too."""
        self.update(sorted(stages.items(), key=lambda one: one[1].order))
        found = self.values()
        self.taking = overriding(found, DispatchStage, "acquire")
        self.looking = overriding(found, DispatchStage, "decided")
        self.reserving = overriding(found, DispatchStage, "reserved")
        self.waking = overriding(found, DispatchStage, "load_fell")
