"""What an instance says of a prompt: how many tokens were cached, and log probabilities."""

from __future__ import annotations  # else a union is made for each request

from collections.abc import Callable

from dynamod.message import tokens
from dynamod.message.ingress import PromptLogprobs, Tokens
from dynamod.message.worker import Generate, Request

from .base import ChoiceSink, TakeLogprobs

TakePrompt = Callable[[Tokens | PromptLogprobs], None]


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
                counts = False  # a frame may come twice, the second time after tokens
                sink.counted(index, cached_tokens=delta.cached_tokens)
        elif logprobs is not None and isinstance(request, Generate):
            logprobs(index, delta, tokens.unpack(request.token_ids))

    return take
