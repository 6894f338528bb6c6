"""From an accepted HTTP request to the requests that engines get: one per choice."""

import asyncio
import random as random_module
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, TypeVar

import msgspec

from dynamod.http.metrics import Histogram
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import TooLarge, unsupported
from dynamod.message.openai import Common
from dynamod.message.worker import Chat, Generate, Stops
from dynamod.parsers import OutputParser
from dynamod.preprocess.checks import logit_bias
from dynamod.preprocess.conditions import fit, stops_of
from dynamod.preprocess.model import Model, Prepared
from dynamod.preprocess.output import Output, TextOutput
from dynamod.preprocess.scan import LARGE
from dynamod.router.router import prompt_blocks

from .base import Job
from .parsing import ModelParsers, NewParser

_ANY_TOKEN = 2**31
"""A text engine's vocabulary is its own: token ids in a request are only checked to be ids."""
_COPIES = 128_000_000
"""Bytes that the choices of one request may have together, each of which takes the whole body to a text engine."""
_INT64 = 2**63
_Request = TypeVar("_Request", Generate, Chat)


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a job asks for, as the backend serves it. `model` is None for a text engine's."""

    card: ModelCard
    model: Model | None
    random: random_module.Random
    with_blocks: bool = False
    hashing: Histogram | None = None  # of the milliseconds that `blocks` takes
    parsers: ModelParsers | None = None

    def blocks(self, ids: bytes) -> Sequence[int]:
        """Sequence hashes of the full blocks of packed token ids; none where routing does not need them."""
        if not self.with_blocks:
            return ()
        started = perf_counter()
        found = prompt_blocks(ids, self.card.kv_cache_block_size)
        if self.hashing is not None:
            self.hashing.observe((perf_counter() - started) * 1000)
        return found


@dataclass(frozen=True, slots=True)
class Lowered:
    """A request as engines get it: one request per choice, in the order of the choices. `model` is None for text.

    `outputs`: what makes text of each choice's answer. `samples`: choices per prompt. `annotations`: for the client.
    """

    card: ModelCard
    model: Model | None
    requests: Sequence[Generate | Chat]
    outputs: Sequence[Output | TextOutput]
    prompt_tokens: Sequence[int]  # by choice
    annotations: Mapping[str, Any]
    blocks: Sequence[Sequence[int]] = ()  # by choice, where routing needs them
    samples: int = 1
    parsers: Sequence[OutputParser] = ()  # by choice, where its text has reasoning or calls of tools


async def lower_tokens(
    job: Job,
    request: Common,
    served: Served,
    prompts: Iterable[Prepared],
    *,
    parser: NewParser | None = None,
) -> Lowered:
    """The requests for a token engine; long prompts are tokenised and hashed in a thread. Raises BadRequest.

    `parser`: what makes the parser of each choice, which sees special tokens and drops them.
    """
    card, model, samples = served.card, served.model, request.n or 1
    assert model is not None
    annotations: dict[str, Any] = {}
    requests: list[Generate] = []
    counts: list[int] = []
    blocks: list[Sequence[int]] = []
    draw, own_noise = None if card.capabilities.deterministic else served.random, card.capabilities.greedy_continuation
    outputs: list[Output] = []
    parsers: list[OutputParser] = []
    skip_special = parser is None and request.skip_special_tokens is not False
    large = len(job.body) > LARGE
    for prepared in prompts:
        thread = large or model.needs_thread(prepared.prompt)
        encoded = asyncio.to_thread(_encoded, served, prepared, job.id) if thread else None
        generate, found = _encoded(served, prepared, job.id) if encoded is None else await encoded
        _annotate(annotations, generate, prepared)
        requests += [_seeded(generate, sample, draw, own_noise) for sample in range(samples)]
        outputs += [_output(request, model, generate, skip_special) for _ in range(samples)]
        if parser is not None:
            parsers += [parser(prepared.prompt, f"{served.random.getrandbits(64):x}") for _ in range(samples)]
        counts += [tokens.count(generate.token_ids)] * samples
        blocks += [found] * samples
    return Lowered(card, model, _named(requests), outputs, counts, annotations, blocks, samples, parsers)


def lower_text(job: Job, request: Common, card: ModelCard, kind: Literal["chat", "completion"]) -> Lowered:
    """The requests for a text engine: the client's own JSON with the model's name, checked as far as we know it.

    `kind`: the route by which it came, for the engine. Raises BadRequest, TooLarge.
    """
    logit_bias(request.logit_bias, _ANY_TOKEN)
    stops = stops_of(request, card, _ANY_TOKEN)
    if stops.max_tokens is not None:
        stops = fit(stops, card.context_length)
    samples = request.n or 1
    if samples * len(job.body) > _COPIES:
        raise TooLarge(f"`n` times this body is more than {_COPIES // 1_000_000} MB", param="n")
    chat = Chat(job.id, card.name, kind, job.body, max_tokens=stops.max_tokens, stop=stops.stop or ())
    ends = Stops(max_tokens=stops.max_tokens, stop=stops.stop)
    include = bool(request.include_stop_str_in_output)
    outputs = [TextOutput(ends, include_stop=include) for _ in range(samples)]
    annotations = {"request_id": job.id} if request.wants("request_id") else {}
    return Lowered(card, None, _named([chat] * samples), outputs, [0] * samples, annotations, samples=samples)


def check_served(request: Common, card: ModelCard) -> None:
    """Refuse what the model's engine cannot do and would silently leave out. Raises BadRequest."""
    can = card.capabilities
    if request.alternatives is not None and not can.logprobs:
        raise unsupported("logprobs", f"The model {card.name!r} offers no logprobs.")
    if not can.grammars and (field := request.constraint):
        raise unsupported(field, f"`{field}`: the engine of model {card.name!r} has no grammars.")


def _encoded(served: Served, prepared: Prepared, request_id: str) -> tuple[Generate, Sequence[int]]:
    """The request and the hashes of its blocks. Safe in a thread."""
    assert served.model is not None
    generate = served.model.encode(prepared, request_id)
    return generate, served.blocks(generate.token_ids)


def _output(request: Common, model: Model, generate: Generate, skip_special: bool) -> Output:
    return Output(
        model.tokenizer,
        generate.stops,
        generate.eos_token_ids,
        skip_special=skip_special,
        continuing=request.continues_prompt,
        include_stop=bool(request.include_stop_str_in_output),
    )


def _named(requests: list[_Request]) -> list[_Request]:
    """Each choice is a request of its own to engines, which tell requests apart by their ids: `id#0`, `id#1`, ..."""
    if len(requests) == 1:
        return requests
    return [
        msgspec.structs.replace(request, request_id=f"{request.request_id}#{index}")
        for index, request in enumerate(requests)
    ]


def _seeded(generate: Generate, sample: int, random: random_module.Random | None, own_noise: bool) -> Generate:
    """Every choice gets a seed of its own that is said, so that another instance can go on with the same noise.

    `random` None: the engine has no chance in it unless a seed asks for another answer, as further choices do.
    `own_noise`: another instance could not, so the engine draws.
    """
    seed = generate.sampling.seed
    if seed is not None:
        seed = (seed + sample + _INT64) % (2 * _INT64) - _INT64
    elif own_noise:
        pass
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
