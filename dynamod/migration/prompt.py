"""A prompt that a prefill worker computes for the instance that answers, as the request sees it."""

from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

from dynamod.message.discovery import Instance
from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Generate, Handoff
from dynamod.router.placement import Placement


class RemotePrompt(Protocol):
    """A prompt at a prefill worker, or one that has it stored; leaving its context drops what is left of it there."""

    handoff: Future[Handoff]

    @property
    def instance(self) -> Instance | None:
        """Of the prefill worker. None: nothing is computed for it, so that it cannot be the cause of a crash."""
        ...

    @property
    def alone(self) -> bool:
        """Whether it was tried alone there, and had begun."""
        ...

    def watch(self, failed: Callable[[str, bool], None]) -> None:
        """Call `failed` once if the blocks cannot be had any more: why, and whether only another needs the worker."""

    def unread(self) -> None:
        """The instance gives the request up because it could not have the blocks."""

    def __enter__(self) -> Self:
        """Itself."""
        ...

    def __exit__(self, *error: object) -> None:
        """Drop it."""


class PrefillWorkerLost(EngineFailed):
    """The prefill worker `instance` has gone before it gave a hand-off: the prompt may have crashed it.

    `alone`: as of a `RemotePrompt`.
    """

    def __init__(self, instance: Instance, why: str, *, alone: bool = False) -> None:
        super().__init__(why)
        self.instance, self.alone = instance, alone


class RemotePrefill(Protocol):
    """Has the prompt of a request computed for the instance of a placement (ingress.remote_prefill).

    None: that instance has to do it.
    """

    def __call__(self, request: Generate, placement: Placement) -> Awaitable[RemotePrompt | None]:
        """Raises Overloaded when this process ends, and PrefillWorkerLost."""
        ...
