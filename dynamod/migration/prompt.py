"""A prompt that a prefill worker computes for the instance that answers, as the request sees it."""

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, Self

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import EngineFailed
from dynamod.message.ingress import Logprobs, PromptLogprobs, Tokens
from dynamod.message.worker import Generate, Handoff, Request
from dynamod.router.placement import Placement

from .base import ChoiceSink


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


TakePrompt = Callable[[Tokens | PromptLogprobs], None]
TakeLogprobs = Callable[[int, Logprobs | PromptLogprobs, Sequence[int]], None]


def prompt_taker(sink: ChoiceSink, index: int, request: Request, logprobs: TakeLogprobs | None) -> TakePrompt:
    """What takes all that the instance that the request is sent to says of its prompt.

    Where a prefill worker computes the prompt its count of cached tokens counts, which is known now: to the instance
    that answers, all blocks that it gets are cached ones.
    """
    handoff = request.handoff if isinstance(request, Generate) else None
    counts = handoff is None or handoff.stored
    if handoff is not None and not counts and handoff.cached_tokens is not None:
        sink.counted(index, cached_tokens=handoff.cached_tokens)

    def take(delta: Tokens | PromptLogprobs) -> None:
        nonlocal counts
        if isinstance(delta, Tokens):
            if counts:
                counts = False  # a frame may come twice, the second time behind tokens
                sink.counted(index, cached_tokens=delta.cached_tokens)
        elif logprobs is not None and isinstance(request, Generate):
            logprobs(index, delta, tokens.unpack(request.token_ids))

    return take
