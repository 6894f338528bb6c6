"""A request's place at an instance: how it is asked for, held while the instance works on it, and given back."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from dynamod.actor import ActorUnreachable, DeadlineExceeded, Ref
from dynamod.discovery.view import View
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import Overloaded

from .decision import Decision
from .eligible import lacks
from .router import Prompt, Router

NO_LIMIT = 1e9
"""Seconds to wait for a place where no limit is set."""


class Placement:
    """A request counts as load at `instance` until `release`, which a `with` block calls at its end.

    `decision` says why it is there. `alone`: the instance takes no other request until this one has `passed`, because
    it may be the cause of a crash; `shared`: some that were there could not leave; `guilty`: it was the cause;
    `untried`: there was no time to try it alone. `leave`: set by the holder of the placement; called when the instance
    is needed for such a request, it returns whether this one has left. `stays`: set by the holder too; whether `leave`
    would refuse now. `made_room`: the placements of the requests that have left for this one. `cause`: why the instance
    ended, where it ended after this request had left for another one and before the other one had begun. `first_token`:
    set by the caller that has the prompt computed elsewhere. `took`: seconds of the decision.
    """

    __slots__ = (
        *("_changed", "_router", "alone", "cause", "decision", "first_token", "guilty"),
        *("instance", "leave", "made_room", "shared", "stays", "took", "untried"),
    )

    def __init__(
        self,
        instance: Instance,
        decision: Decision,
        router: Router,
        changed: Callable[[], None],
        alone: bool = False,
        untried: bool = False,
    ) -> None:
        self.instance, self.decision, self.alone = instance, decision, alone
        self.guilty = self.shared = False
        self.untried = untried
        self.made_room: Sequence[Placement] = ()
        self.cause = ""
        self.took = 0.0
        self._router, self._changed = router, changed
        self.leave: Callable[[], bool] = _refuses
        self.stays: Callable[[], bool] = _remains
        self.first_token: Callable[[], None] | None = None

    @property
    def found(self) -> tuple[Instance, Decision, float]:
        """What marks of a timeline are about: instance, decision, seconds of the decision."""
        return self.instance, self.decision, self.took

    def prefill_completed(self) -> None:
        """The instance has sent the first token: the prompt is no load any more."""
        self._router.prefill_completed(self)
        self._changed()
        if self.first_token is not None:
            self.first_token()

    def passed(self) -> None:
        """The instance has lived through what the request does: others may come."""
        self.alone = False
        self._changed()

    def release(self) -> None:
        """The instance has no more to do with the request. Called again, it does nothing."""
        self.alone = False
        self.leave, self.stays = _refuses, _remains
        self._router.finished(self)
        self._changed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _refuses() -> bool:
    return False


def _remains() -> bool:
    return True


class Acquire(msgspec.Struct, eq=False):
    """Message to the dispatcher: place a request of a model. The reply is a Placement, or an Overloaded error.

    `exclude`: instances that have failed it. `waits`: it may wait for its turn when all are busy. `again`: its client
    has seen it begin, so it waits whatever the size of the queue. `alone`: at an instance that takes no other
    meanwhile; of several the one that has `received` least is the first. `placement` is what was granted: a caller
    that leaves before the reply has come finds it here. `adapter`: the card of the adapter that it asks for, which not
    all instances may have; None: the model alone. `untried`: that of the placement. `after`: the decision about the
    instance that answers, of a request for another instance that helps that one.
    """

    model: str
    prompt: Prompt
    exclude: Collection[int] = ()
    priority: int = 0
    pool: str = ""
    waits: bool = True
    again: bool = False
    alone: bool = False
    received: int = 0
    placement: Placement | None = None
    adapter: ModelCard | None = None
    untried: bool = False
    after: Decision | None = None

    @property
    def choosy(self) -> bool:
        """Whether it may have to wait although some instance is free for others."""
        prompt = self.prompt
        special = self.adapter is not None or prompt.form is not None or prompt.instance is not None
        return bool(self.exclude or prompt.session or prompt.needs or special)


@dataclass(frozen=True, slots=True)
class DispatcherClient:
    """Places requests: the client side of the dispatcher's mailbox. `view`: the instances, published for reading."""

    dispatcher: Ref
    view: View

    async def acquire(
        self,
        card: ModelCard,
        prompt: Prompt,
        exclude: Collection[int] = (),
        *,
        priority: int = 0,
        pool: str = "",
        waits: bool = True,
        again: bool = False,
        alone: bool = False,
        received: int = 0,
        after: Decision | None = None,
        timeout: float | None = None,
    ) -> Placement:
        """Wait for the request's turn, at most `timeout` seconds, and return its place; use it in a `with` block.

        The other arguments are those of `Acquire`. A stage of the dispatcher may have another reply than a place.
        Cancelling leaves the queue, and releases what was granted meanwhile. Raises Overloaded.
        """
        message = Acquire(card.base, prompt, exclude, priority, pool, waits, again or bool(exclude), alone, received)
        message.adapter = card if card.adapter is not None else None
        message.after = after
        limit = NO_LIMIT if timeout is None else timeout
        try:
            placement: Placement = await self.dispatcher.ask(message, timeout=limit)
            return placement
        except BaseException as error:
            if message.placement is not None:
                message.placement.release()  # it was granted after the caller has left
            if isinstance(error, DeadlineExceeded):
                why = f"no instance took the request within {limit:g} s: all are busy"
                raise Overloaded(why, retry_after=1.0) from None
            if isinstance(error, ActorUnreachable):
                raise Overloaded(f"the processor is not available: {error}", retry_after=1.0) from None
            raise

    def available(
        self, card: ModelCard, prompt: Prompt, exclude: Collection[int], *, received: int = 0, pool: str = ""
    ) -> bool:
        """Whether an instance is there, busy or not, that may take the request and has not failed it.

        `received`: so much of its answer has come.
        """
        if prompt.instance in exclude:
            return False  # a request that names its instance accepts no other
        served = self.view.served(card.name, card, pool)
        words = prompt.form_words(received)
        out = exclude if words is None else {*exclude, *self.view.unable(card.base, words)}
        left = (one for one in served.instances if one.instance_id not in out)
        return any(not lacks(prompt.needs, self.view.card_of(card.name, one)) for one in left)
