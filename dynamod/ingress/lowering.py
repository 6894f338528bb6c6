"""From an accepted HTTP request to the requests that engines get: one per choice."""

import asyncio
import random as random_module
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, TooLarge, unsupported
from dynamod.message.openai import ChatRequest, Common
from dynamod.message.worker import BEHIND, LATER_TAGS, WITH_CHAT, Chat, Embed, Generate, Grammar, Stops
from dynamod.observe.metrics import Histogram
from dynamod.preprocess.conditions import fit, logit_bias_of, stops_of
from dynamod.preprocess.model import Model, Prepared
from dynamod.preprocess.output import Output, RecordedOutput, TextOutput
from dynamod.preprocess.parse import LARGE
from dynamod.router.router import prompt_blocks

from .base import Job
from .counts import Preparation
from .parsing import ChoiceParser, ModelParsers, NewParser, skips_special

if TYPE_CHECKING:
    from dynamod.structured.checks import GrammarChecks

_ANY_TOKEN = 2**31
"""A text engine's vocabulary is its own: token ids in a request are only checked to be ids."""
_COPIES = 128_000_000
"""Bytes that the choices of one request may have together, each of which takes the whole body to a text engine."""
_INT64 = 2**63
_WORDS = {BEHIND: "stands after reasoning", LATER_TAGS: "is a structural tag with such parts"}
_Request = TypeVar("_Request", Generate, Chat, Embed)


class Served(msgspec.Struct, frozen=True):
    """The model that a job asks for, as the backend serves it. `model` is None for a text engine's.

    `checks`: makes what compiles grammars of clients, when one asks for a form of its answer.
    """

    card: ModelCard
    model: Model | None
    random: random_module.Random
    with_blocks: bool = False
    hashing: Histogram | None = None  # of the milliseconds that `blocks` takes
    times: Preparation | None = None
    parsers: ModelParsers | None = None
    checks: "Callable[[], GrammarChecks] | None" = None

    def id(self) -> str:
        """What the ids of an answer's calls are made of."""
        return f"{self.random.getrandbits(64):x}"

    def blocks(self, ids: bytes) -> Sequence[int]:
        """Sequence hashes of the full blocks of packed token ids; none where routing does not need them."""
        if not self.with_blocks:
            return ()
        started = perf_counter()
        found = prompt_blocks(ids, self.card.kv_cache_block_size, self.card.salt)
        if self.hashing is not None:
            self.hashing.observe((perf_counter() - started) * 1000)
        return found

    async def grammar(self, request: Common) -> Grammar | None:
        """The form of the answer, compiled to see whether it can be had; None: any. Raises BadRequest, Overloaded."""
        if not self.takes_forms or (not request.constraint and not self.forces_calls(request)):
            return None
        from dynamod.structured.demand import CALLS, demand, parameters  # most requests ask for none
        from dynamod.structured.tags import TAGS, Rules

        wanted = demand(request, self.written_calls(request))
        if wanted is None:
            return None
        for word in wanted[1].words:
            self.require(word, wanted[0])
        if not self._has_pieces:
            why = f"`{wanted[0]}`: the tokenizer of model {self.card.name!r} does not say which bytes its tokens are"
            raise unsupported(wanted[0], why)
        if self.checks is None:
            return wanted[1]
        try:
            await self.checks().check(*wanted)
        except BadRequest:
            if isinstance(request, ChatRequest) and wanted[0] == CALLS:
                for one in parameters(request):  # which of them it is
                    await self.checks().check(*one)
            if wanted[1].kind == TAGS:
                for place, part in Rules(msgspec.json.decode(wanted[1].text)).parts:
                    await self.checks().check(f"{wanted[0]}{place}", part)
            raise
        return wanted[1]

    def forces_calls(self, request: Common) -> bool:
        """Whether the answer is made to be calls of tools; an engine that knows no forms is only asked for them."""
        if not isinstance(request, ChatRequest) or not request.must_call:
            return False
        return self.takes_forms and self._has_pieces

    def written_calls(self, request: Common) -> dict[str, Any] | None:
        """Calls that have to come as the model itself writes them; None: there are none, or the format is not known.

        Only a worker that reads all structural tags gets them.
        """
        if self.parsers is None or not isinstance(request, ChatRequest) or not self.forces_calls(request):
            return None
        if not {"structural_tag", LATER_TAGS} <= {*self.forms}:
            return None
        return self.parsers.written(request, self.model.tokenizer.special if self.model is not None else ())

    @property
    def forms(self) -> Collection[str]:
        """What at least one of the workers knows of forms (`Capabilities.forms`)."""
        return self.card.capabilities.forms

    @property
    def takes_forms(self) -> bool:
        """Whether forms are read and checked here; else the engine, if it keeps to any, reads them in the JSON."""
        return self.card.capabilities.grammars and (self.model is not None or WITH_CHAT in self.forms)

    def require(self, word: str, field: str) -> None:
        """Refuse a form that no worker knows. `word`: of `Capabilities.forms`. Raises BadRequest."""
        if word not in self.forms:
            what = _WORDS.get(word, f"is a {word}")
            raise unsupported(field, f"`{field}`: the engine of model {self.card.name!r} keeps to no form that {what}.")

    @property
    def _has_pieces(self) -> bool:
        return self.model is None or self.model.tokenizer.has_pieces


class Lowered(msgspec.Struct, frozen=True):
    """A request as engines get it: one request per choice, in the order of the choices. `model` is None for text.

    `outputs`: what makes text of each choice's answer. `samples`: choices per prompt. `annotations`: for the client.
    `at_once`: how many of the choices are in flight at a time; 0: all.
    """

    card: ModelCard
    model: Model | None
    requests: Sequence[Generate | Chat | Embed]
    outputs: Sequence[Output | TextOutput]
    prompt_tokens: Sequence[int]  # by choice
    annotations: Mapping[str, Any]
    blocks: Sequence[Sequence[int]] = ()  # by choice, where routing needs them
    samples: int = 1
    parsers: Sequence[ChoiceParser] = ()  # by choice, where its text has reasoning or calls of tools
    at_once: int = 0
    echo: Sequence[str] = ()  # by prompt, its text, where the client has sent ids and wants to have it back
    prompt_ids: Sequence[Sequence[int]] = ()  # by prompt, where the client wants all ids; `outputs` record then


async def lower_tokens(
    job: Job,
    request: Common,
    served: Served,
    prompts: Iterable[Prepared],
    *,
    parser: NewParser | None = None,
    grammar: Grammar | None = None,
) -> Lowered:
    """The requests for a token engine; long prompts are tokenised and hashed in a thread. Raises BadRequest.

    `parser`: what makes the parser of each choice, which sees special tokens and drops them. `grammar`: the form of
    each choice, where no marker is a special token.
    """
    card, model, samples = served.card, served.model, request.n or 1
    assert model is not None
    annotations: dict[str, Any] = {}
    requests: list[Generate] = []
    counts: list[int] = []
    blocks: list[Sequence[int]] = []
    ids: list[Sequence[int]] = []
    draw, own_noise = None if card.capabilities.deterministic else served.random, card.capabilities.greedy_continuation
    outputs: list[Output] = []
    parsers: list[ChoiceParser] = []
    skip_special = (parser is None or grammar is not None) and skips_special(request, card)
    large = len(job.body) > LARGE
    for prepared in prompts:
        thread = large or model.needs_thread(prepared.text)
        encoded = asyncio.to_thread(_encoded, served, prepared, job.id) if thread else None
        generate, found = _encoded(served, prepared, job.id) if encoded is None else await encoded
        _annotate(annotations, generate, prepared)
        if card.adapter is not None:
            generate = msgspec.structs.replace(generate, adapter=card.adapter)
        requests += [_seeded(generate, sample, draw, own_noise, grammar) for sample in range(samples)]
        record = request.return_token_ids or job.facts is not None
        outputs += [_output(request, model, generate, skip_special, record) for _ in range(samples)]
        if parser is not None:
            parsers += [parser(prepared.prompt, served.id()) for _ in range(samples)]
        counts += [tokens.count(generate.token_ids)] * samples
        blocks += [found] * samples
        if request.return_token_ids:
            ids.append(list(tokens.unpack(generate.token_ids)))
    requests = named(requests)
    return Lowered(card, model, requests, outputs, counts, annotations, blocks, samples, parsers, prompt_ids=ids)


def lower_text(
    job: Job,
    request: Common,
    served: Served,
    kind: Literal["chat", "completion"],
    parser: NewParser | None = None,
    bodies: Sequence[bytes] | None = None,
    grammar: Grammar | None = None,
) -> Lowered:
    """The requests for a text engine: the client's own JSON with the model's name, checked as far as we know it.

    `kind`: the route by which it came, for the engine. `parser`: as for tokens. `bodies`: one for each prompt; None:
    the client's. `grammar`: the form of each choice, where the engine does not read it in the JSON. Raises BadRequest,
    TooLarge.
    """
    card = served.card
    logit_bias_of(request.logit_bias, _ANY_TOKEN)
    stops = stops_of(request, card, _ANY_TOKEN)
    if stops.max_tokens is not None:
        stops = fit(stops, card.context_length)
    samples, bodies = request.n or 1, (job.body,) if bodies is None else bodies
    if samples * sum([len(body) for body in bodies]) > _COPIES:
        raise TooLarge(f"`n` times this body is more than {_COPIES // 1_000_000} MB", param="n")
    most, stop = stops.max_tokens, stops.stop or ()
    chat = Chat(job.id, card.name, kind, b"", most, stop, grammar=grammar)
    chats = [msgspec.structs.replace(chat, body=body) for body in bodies for _ in range(samples)]
    ends = Stops(max_tokens=stops.max_tokens, stop=stops.stop)
    include = bool(request.include_stop_str_in_output)
    outputs = [TextOutput(ends, include_stop=include) for _ in chats]
    annotations = {"request_id": job.id} if request.wants("request_id") else {}
    parsers = [parser("", served.id()) for _ in chats] if parser is not None else ()
    requests, counts = named(chats), [0] * len(chats)
    return Lowered(card, None, requests, outputs, counts, annotations, samples=samples, parsers=parsers)


def only_asked(request: Common, card: ModelCard, model: Model | None) -> bool:
    """Whether calls that have to come are not enforced: the model is only asked for them. `model`: as of `Served`."""
    if not isinstance(request, ChatRequest) or not request.must_call:
        return False
    return not card.capabilities.grammars or (model is not None and not model.tokenizer.has_pieces)


def check_served(request: Common, card: ModelCard) -> None:
    """Refuse what the model's engine cannot do and would silently leave out. Raises BadRequest."""
    for path, why in unserved_by(request, card):
        raise unsupported(path, why)


def unserved_by(request: Common, card: ModelCard) -> Iterator[tuple[str, str]]:
    """Fields that the model's engine cannot serve, each with the reason."""
    can = card.capabilities
    if request.alternatives is not None and not can.logprobs:
        yield "logprobs", f"The model {card.name!r} offers no logprobs."
    if request.return_token_ids and card.kind == "text":
        yield "return_token_ids", f"`return_token_ids`: the engine of model {card.name!r} answers in text."
    if not can.prompt_logprobs:
        why = f"the engine of model {card.name!r} has no log probabilities of prompts."
        if request.prompt_logprobs is not None:
            yield "prompt_logprobs", f"`prompt_logprobs`: {why}"
        elif request.prompt_alternatives is not None:
            yield "logprobs", f"`logprobs` with `echo`: {why}"
        if request.token_limit[0] == 0:
            yield "max_tokens", f"`max_tokens` is 0: {why}"
    if not can.grammars and (field := request.constraint):
        yield field, f"`{field}`: the engine of model {card.name!r} has no grammars."


def _encoded(served: Served, prepared: Prepared, request_id: str) -> tuple[Generate, Sequence[int]]:
    """The request and the hashes of its blocks. Safe in a thread."""
    assert served.model is not None
    started = perf_counter()
    generate = served.model.encode(prepared, request_id)
    if served.times is not None and prepared.prompt:
        served.times.tokenize.observe(perf_counter() - started)
    return generate, served.blocks(generate.token_ids)


def _output(request: Common, model: Model, generate: Generate, skip_special: bool, record: bool | None) -> Output:
    return (RecordedOutput if record else Output)(
        model.tokenizer,
        generate.stops,
        generate.eos_token_ids,
        skip_special=skip_special,
        continuing=request.continues_prompt,
        include_stop=bool(request.include_stop_str_in_output),
    )


def named(requests: list[_Request]) -> list[_Request]:
    """Each choice is a request of its own to engines, which tell requests apart by their ids: `id#0`, `id#1`, ..."""
    if len(requests) == 1:
        return requests
    return [
        msgspec.structs.replace(request, request_id=f"{request.request_id}#{index}")
        for index, request in enumerate(requests)
    ]


def _seeded(
    generate: Generate,
    sample: int,
    random: random_module.Random | None,
    own_noise: bool,
    grammar: Grammar | None = None,
) -> Generate:
    """Every choice gets a seed of its own that is said, so that another instance can continue with the same noise.

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
    sampling = msgspec.structs.replace(generate.sampling, seed=seed, n=1)
    return msgspec.structs.replace(generate, sampling=sampling, grammar=grammar)


def _annotate(annotations: dict[str, Any], generate: Generate, prepared: Prepared) -> None:
    """What nvext.annotations asks for; of several prompts the first one's."""
    for wanted in generate.annotations:
        if wanted == "formatted_prompt":
            annotations.setdefault("formatted_prompt", prepared.prompt)
        elif wanted == "token_ids":
            annotations.setdefault("token_ids", list(tokens.unpack(generate.token_ids)))
        elif wanted == "request_id":
            annotations.setdefault("request_id", generate.request_id)
