"""Stages: what wraps the placement and the attempts of a choice, each for one choice and one capability."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from dynamod.message.discovery import Instance
from dynamod.message.ingress import Failed
from dynamod.message.worker import Request
from dynamod.router.placement import DispatcherClient, Placement
from dynamod.transport.base import Transport

from .attempt import Attempt, Break
from .base import Limits

if TYPE_CHECKING:
    from dynamod.discovery.view import View

    from .request import InFlightRequest

CAUSE = 0.25
"""Seconds for a daemon to say how a process of its node ended; some milliseconds are usual."""


class Ask(NamedTuple):
    """What is asked of the router. The fields are those of `router.placement.Acquire`."""

    exclude: Collection[int]
    again: bool = False
    alone: bool = False
    received: int = 0


Place = Callable[[Ask], Awaitable[Placement]]
Try = Callable[[Request], Awaitable[Break | None]]


class Stage:
    """Wraps one choice. A subclass overrides what it needs; the methods here change nothing.

    `order`: the stage with the lowest one is the outermost. `suspect`: the choice may crash its instance, so it leaves
    an instance that does not respond, whatever follows.
    """

    order: ClassVar[int] = 0
    suspect = False

    def place(self, ask: Ask, proceed: Place) -> Awaitable[Placement]:
        """Find a place; `proceed` asks the next stage, the last one asks the router. Raises RequestError."""
        return proceed(ask)

    def attempt(self, placement: Placement, request: Request, proceed: Try) -> Awaitable[Break | None]:
        """Try the request at a place. `proceed` is the next stage, and the last one sends the request.

        Returns how the attempt broke, None when the choice is over. A stage may change the request, and may return a
        `Break` of its own. Raises RequestError, which ends the choice.
        """
        return proceed(request)

    def watch(self, attempt: Attempt, placement: Placement) -> Awaitable[None] | None:
        """Awaited after the request was sent, until the stage has seen enough of the attempt. The request waits.

        None: the stage has nothing to see.
        """
        return None

    async def blame(
        self,
        instance: Instance,
        timeout: float | None,
        at: Placement | None,
        *,
        alone: bool,
        begun: bool,
        until: float | None,
    ) -> str:
        """An instance has gone that had the request: say why it crashed or hung, empty when it did not.

        `timeout`: seconds to wait for the cause; None: as long as usual. `at`: where the request is placed. `alone`: no
        other request was at `instance`. `begun`: the instance had begun with the request, as far as is known. `until`:
        when it had done its part, in seconds of the loop's clock; None: it has not, or did just now. Raises
        RequestError to end the choice.
        """
        return ""

    def failed(self, failed: Failed) -> bool:
        """Take an error that the instance sends; returns whether the stage has dealt with it."""
        return False

    def finished(self) -> None:
        """The answer is complete."""


T = TypeVar("T")


def overriding(objects: Iterable[T], base: type[T], method: str) -> list[T]:
    """Those of `objects` whose class has its own `method`: the others need not be called for each request."""
    return [one for one in objects if getattr(type(one), method) is not getattr(base, method)]


class _Plan(NamedTuple):
    """Indexes of stages of certain types: all in their order, and those to call. The innermost placing comes first."""

    order: tuple[int, ...]
    placing: tuple[int, ...]
    attempting: tuple[int, ...]
    watching: tuple[int, ...]


@lru_cache(maxsize=256)
def _plan(kinds: tuple[type[Stage | None], ...]) -> _Plan:
    """Choices have one of few combinations of stages: what each has of its own is looked up once."""
    stages = {index: kind for index, kind in enumerate(kinds) if issubclass(kind, Stage)}
    ordered = sorted(stages, key=lambda index: stages[index].order)

    def own(method: str) -> tuple[int, ...]:
        return tuple(index for index in ordered if getattr(stages[index], method) is not getattr(Stage, method))

    return _Plan(tuple(ordered), own("place")[::-1], own("attempt")[::-1], own("watch"))


MakeStage = Callable[["InFlightRequest"], Stage | None]
"""Makes the stage of one choice; None where the choice needs none."""

Begin = Callable[[Request], MakeStage]
"""Looks at a new request. Raises RequestError for a request that must not begin."""


class Stages:
    """The stages of one choice, in their order. `acquire` is what the innermost asks for a place."""

    def __init__(self, stages: Sequence[Stage | None], acquire: Place) -> None:
        plan = _plan(tuple(map(type, stages)))
        at: Callable[[int], Stage] = stages.__getitem__  # type: ignore[assignment]  # a plan has no place of None
        self._stages, self._attempting = [*map(at, plan.order)], [*map(at, plan.attempting)]
        self._watching = [*map(at, plan.watching)]
        self.place = acquire
        for index in plan.placing:
            self.place = partial(at(index).place, proceed=self.place)

    def close(self) -> None:
        """The choice is over: free the stages, which know it."""
        self._stages, self._attempting, self._watching = [], [], []
        del self.place

    @property
    def suspect(self) -> bool:
        """Whether the choice may crash its instance."""
        return any(stage.suspect for stage in self._stages)

    def attempt(self, placement: Placement, request: Request, send: Try) -> Awaitable[Break | None]:
        """As `Stage.attempt`; the innermost stage calls `send`."""
        for stage in self._attempting:
            send = partial(stage.attempt, placement, proceed=send)
        return send(request)

    async def watch(self, attempt: Attempt, placement: Placement) -> None:
        """As `Stage.watch`, one after the other."""
        for stage in self._watching:
            if (seen := stage.watch(attempt, placement)) is not None:
                await seen

    async def blame(
        self,
        instance: Instance | None,
        timeout: float | None = None,
        at: Placement | None = None,
        *,
        alone: bool = False,
        begun: bool = True,
        until: float | None = None,
    ) -> str:
        """`Stage.blame` of the first stage that knows a cause. `instance`: None for one that computed nothing."""
        if instance is None:
            return ""
        for stage in self._stages:
            if cause := await stage.blame(instance, timeout, at, alone=alone, begun=begun, until=until):
                return cause
        return ""

    def failed(self, failed: Failed) -> bool:
        """Whether a stage has dealt with the error."""
        return any(stage.failed(failed) for stage in self._stages)

    def finished(self) -> None:
        """The answer is complete."""
        for stage in self._stages:
            stage.finished()


@dataclass(frozen=True, slots=True)
class StageContext:
    """What stages of an ingress process get. `now`: seconds of a monotonic clock. `node()`: the name of this node.

    `dispatch`: what features have in the dispatcher (`ingress.dispatch_stage.DispatchStage`), by their names.
    """

    view: View
    now: Callable[[], float]
    node: Callable[[], str]
    transport: Transport
    dispatcher: DispatcherClient
    limits: Limits
    dispatch: Mapping[str, Any]
