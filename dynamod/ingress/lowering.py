"""From an accepted HTTP request to the mail that engines get: one message per choice."""

import asyncio
import random as random_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from dynamod.http.metrics import Histogram
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, CompletionRequest
from dynamod.message.worker import Chat, Generate
from dynamod.preprocess.conditions import sampling_of, stops_of
from dynamod.preprocess.model import Model, Prepared
from dynamod.router.router import prompt_blocks

from .base import Job

_ANY_TOKEN = 2**31 - 1
"""A text engine's vocabulary is its own: token ids in a request are only checked to be ids."""
_INT64 = 2**63
_Request = TypeVar("_Request", Generate, Chat)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A request as engines get it: one message per choice, in the order of the choices. `model` is None for text."""

    card: ModelCard
    model: Model | None
    requests: Sequence[Generate | Chat]
    prompt_tokens: Sequence[int]  # by choice
    annotations: Mapping[str, Any]
    blocks: Sequence[
        Sequence[int]
    ] = ()  # by choice: sequence hashes of the prompt's full blocks, where routing needs them


async def lower(
    job: Job,
    card: ModelCard,
    model: Model | None,
    random: random_module.Random,
    *,
    with_blocks: bool = False,
    hashing: Histogram | None = None,
) -> Lowered:
    """Check a request and make its mail; long prompts are tokenised in a thread. Raises RequestError.

    `hashing` is told the milliseconds that the hashes of the blocks took.
    """
    request = job.request
    check_served(request, card)
    samples = request.n or 1
    annotations: dict[str, Any] = {}
    if model is None:
        chat = lower_text(job, card)
        if request.nvext is not None and "request_id" in (request.nvext.annotations or ()):
            annotations["request_id"] = job.id
        return Lowered(card, None, _named([chat] * samples), [0] * samples, annotations)
    requests: list[Generate] = []
    counts: list[int] = []
    blocks: list[Sequence[int]] = []
    for prompt in completion_prompts(request):
        prepared = model.prepare(request, prompt)
        if model.needs_thread(prepared.prompt):
            generate = await asyncio.to_thread(model.encode, prepared, job.id)
        else:
            generate = model.encode(prepared, job.id)
        _annotate(annotations, generate, prepared)
        draw = None if card.capabilities.deterministic else random
        requests += [_seeded(generate, sample, draw) for sample in range(samples)]
        counts += [tokens.count(generate.token_ids)] * samples
        if with_blocks:
            started = perf_counter()
            blocks += [prompt_blocks(generate.token_ids, card.kv_cache_block_size)] * samples
            if hashing is not None:
                hashing.observe((perf_counter() - started) * 1000)
    return Lowered(card, model, _named(requests), counts, annotations, blocks)


def _named(requests: list[_Request]) -> list[_Request]:
    """Each choice is a request of its own to engines, which tell requests apart by their ids: `id#0`, `id#1`, ..."""
    if len(requests) == 1:
        return requests
    return [
        msgspec.structs.replace(request, request_id=f"{request.request_id}#{index}")
        for index, request in enumerate(requests)
    ]


def check_served(request: ChatRequest | CompletionRequest, card: ModelCard) -> None:
    """Refuse what the model's engine cannot do and would silently leave out. Raises BadRequest."""
    wanted = request.logprobs is not None and request.logprobs is not False  # 0 asks for the chosen tokens alone
    if wanted and not card.capabilities.logprobs:
        raise BadRequest(f"The model {card.name!r} offers no logprobs.", param="logprobs", code="unsupported_parameter")


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


def _seeded(generate: Generate, sample: int, random: random_module.Random | None) -> Generate:
    """Every choice gets a seed of its own that is said, so that another instance can go on with the same noise.

    `random` None: the engine has no chance in it unless a seed asks for another answer, as further choices do.
    """
    seed = generate.sampling.seed
    if seed is not None:
        seed = (seed + sample + _INT64) % (2 * _INT64) - _INT64
    elif random is not None:
        seed = random.getrandbits(31)
    elif sample:
        seed = sample
    return msgspec.structs.replace(generate, sampling=msgspec.structs.replace(generate.sampling, seed=seed, n=1))


def _annotate(annotations: dict[str, Any], generate: Generate, prepared: Prepared) -> None:
    """What nvext.annotations asks for; of several prompts the first one's."""
    for wanted in generate.annotations:
        if wanted == "formatted_prompt":
            annotations.setdefault("formatted_prompt", prepared.prompt)
        elif wanted == "token_ids":
            annotations.setdefault("token_ids", list(tokens.unpack(generate.token_ids)))
        elif wanted == "request_id":
            annotations.setdefault("request_id", generate.request_id)
