"""What the processor hands to engines that take text, and the prompts of a completion request."""

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, CompletionRequest
from dynamod.message.registry import ModelCard
from dynamod.message.worker import Chat
from dynamod.preprocess.conditions import sampling_of, stops_of

from .base import Job

_ANY_TOKEN = 2**31 - 1
"""A text engine's vocabulary is its own: token ids in a request are only checked to be ids."""


def completion_prompts(request: ChatRequest | CompletionRequest) -> list[str | list[int] | None]:
    """The prompts of a request, each a string or token ids; None stands for the messages of a chat.

    Raises BadRequest for an empty list and for one that mixes kinds.
    """
    if isinstance(request, ChatRequest):
        return [None]
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt must not be empty", param="prompt")
    if all(isinstance(part, int) and not isinstance(part, bool) for part in prompt):
        return [[part for part in prompt if isinstance(part, int)]]
    texts = [part for part in prompt if isinstance(part, str)]
    if len(texts) == len(prompt):
        return list(texts)
    lists = [part for part in prompt if isinstance(part, list)]
    if len(lists) == len(prompt):
        return list(lists)
    raise BadRequest(
        "prompt must be a string, a list of strings, a list of token ids, or a list of such lists", param="prompt"
    )


def lower_text(job: Job, card: ModelCard) -> Chat:
    """The request for a text engine: the client's own JSON with the model's name, checked as far as we know it."""
    request = job.request
    sampling_of(request, card, _ANY_TOKEN)
    stops = stops_of(request, card, 0, _ANY_TOKEN)
    if isinstance(request, CompletionRequest) and not isinstance(request.prompt, str):
        raise BadRequest(f"The model {card.name!r} takes one prompt as a string.", param="prompt")
    if isinstance(request, ChatRequest) and not request.messages:
        raise BadRequest("messages must not be empty", param="messages")
    if request.logprobs not in (None, False) and not card.capabilities.logprobs:
        raise BadRequest(f"The model {card.name!r} offers no logprobs.", param="logprobs")
    return Chat(
        request_id=job.id,
        model=card.name,
        kind=job.kind,
        body=job.body,
        max_tokens=stops.max_tokens if _limits(request) else None,
        stop=stops.stop or (),
    )


def _limits(request: ChatRequest | CompletionRequest) -> bool:
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return True
    return request.max_tokens is not None
