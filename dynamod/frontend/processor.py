"""The processor: from an accepted HTTP request to flights on instances. The real `Backend` of the front door.

It is an actor with one message per request (`Serve`); after that the flights call the outlet directly.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dynamod.actor import Actor, ActorUnreachable, DeadlineExceeded, MailboxFull, Ref, handle
from dynamod.message import tokens
from dynamod.message.errors import NotFound, Overloaded, RequestError, UserError
from dynamod.message.ingress import Logprobs
from dynamod.message.registry import ModelCard
from dynamod.message.worker import Chat, Generate, Stops
from dynamod.migration.flight import Flight, Limits
from dynamod.post.base import Post
from dynamod.preprocess.lower import Model, Prepared
from dynamod.preprocess.output import Output, TextOutput
from dynamod.registry.view import View
from dynamod.router.policy import RouterMode, choose

from .base import Job, Logprob, Outlet, Run
from .lowering import completion_prompts, lower_text

log = logging.getLogger("dynamod.frontend")

CLOCK = 0.5
"""Seconds between looks at the clocks of all flights."""


class ProcessorStatistics(msgspec.Struct, frozen=True):
    """Requests taken, flights in the air, flights landed, models ready."""

    requests: int
    flights: int
    landed: int
    models: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Begin to serve a request."""

    job: Job
    outlet: Outlet


Announce = Callable[[str, ModelCard | None], None]


class Processor(Actor):
    """Knows the models of the registry, loads their tokenizers, and starts flights.

    `announce(name, card)` is told when a model can be asked for here, and with None when no longer.
    """

    mailbox_capacity = 4096

    def __init__(
        self,
        view: View,
        post: Post,
        *,
        mode: RouterMode = "round-robin",
        limits: Limits = Limits(),
        migration_limit: int | None = None,
        announce: Announce = lambda _name, _card: None,
    ) -> None:
        self._view, self._post = view, post
        self._mode, self._limits, self._migration_limit = mode, limits, migration_limit
        self._announce = announce
        self._models: dict[str, Model | None] = {}  # None: a text engine, nothing to load
        self.cards: dict[str, ModelCard] = {}
        self._flights: set[Flight] = set()
        self._turn = 0
        self._requests = self._landed_count = 0

    async def started(self) -> None:
        """Begin to watch models and clocks."""
        self._view.on_model(self._model_changed)
        for name, card in self._view.models().items():
            self._model_changed(name, card)
        self.context.task(self._watch_clocks(), "clocks")

    @handle
    async def serve(self, message: Serve) -> "Run | RequestError":
        """Start a request's flights. What is wrong with the request is the reply."""
        try:
            return await self._serve(message.job, message.outlet)
        except RequestError as error:
            return error

    def statistics(self) -> ProcessorStatistics:
        """A snapshot."""
        return ProcessorStatistics(self._requests, len(self._flights), self._landed_count, len(self.cards))

    def inspection(self) -> dict[str, Any]:
        """The statistics and the models."""
        return {**msgspec.to_builtins(self.statistics()), "model_names": sorted(self.cards)}

    # Models.

    def _model_changed(self, name: str, card: ModelCard | None) -> None:
        if card is None:
            self._models.pop(name, None)
            if self.cards.pop(name, None) is not None:
                self._announce(name, None)
        elif card.kind == "text":
            self._ready(name, None, card)
        else:
            self.context.task(self._load(name, card), f"load {name}")

    async def _load(self, name: str, card: ModelCard) -> None:
        try:
            model = await asyncio.to_thread(Model.load, card)
        except UserError as error:
            log.error("cannot serve model %s: %s", name, error.line())
            return
        except Exception:
            log.exception("cannot serve model %s: its tokenizer or template failed to load", name)
            return
        if self._view.card(name) is not None:
            self._ready(name, model, card)

    def _ready(self, name: str, model: Model | None, card: ModelCard) -> None:
        self._models[name] = model
        self.cards[name] = card
        self._announce(name, card)

    # Requests.

    async def _serve(self, job: Job, outlet: Outlet) -> Run:
        request = job.request
        card = self.cards.get(request.model)
        if card is None:
            known = ", ".join(sorted(self.cards)) or "none"
            raise NotFound(f"The model {request.model!r} does not exist. Models served now: {known}.", param="model")
        self._requests += 1
        samples = request.n or 1
        model = self._models[card.name]
        if model is None:
            chat = lower_text(job, card)
            wanted = request.nvext.annotations or () if request.nvext is not None else ()
            annotations: dict[str, Any] = {"request_id": job.id} if "request_id" in wanted else {}
            return self._start(job, outlet, card, None, [chat] * samples, [0] * samples, annotations)
        generates: list[Generate] = []
        prompts: list[int] = []
        annotations = {}
        for prompt in completion_prompts(request):
            prepared = model.prepare(request, prompt)
            if model.needs_thread(prepared.prompt):
                generate = await asyncio.to_thread(model.encode, prepared, job.id)
            else:
                generate = model.encode(prepared, job.id)
            self._annotate(annotations, generate, prepared)
            count = tokens.count(generate.token_ids)
            for sample in range(samples):
                generates.append(self._seeded(generate, sample, samples))
                prompts.append(count)
        return self._start(job, outlet, card, model, generates, prompts, annotations)

    def _seeded(self, generate: Generate, sample: int, samples: int) -> Generate:
        """Every request gets an explicit seed, so that another instance can go on with the same noise."""
        seed = generate.sampling.seed
        seed = self.context.random.getrandbits(31) if seed is None else seed + sample
        if samples > 1 or seed != generate.sampling.seed:
            sampling = msgspec.structs.replace(generate.sampling, seed=seed, n=1)
            return msgspec.structs.replace(generate, sampling=sampling)
        return generate

    @staticmethod
    def _annotate(annotations: dict[str, Any], generate: Generate, prepared: Prepared) -> None:
        for wanted in generate.annotations:
            if wanted == "formatted_prompt":
                annotations.setdefault("formatted_prompt", prepared.prompt)
            elif wanted == "token_ids":
                annotations.setdefault("token_ids", list(tokens.unpack(generate.token_ids)))
            elif wanted == "request_id":
                annotations.setdefault("request_id", generate.request_id)

    def _start(
        self,
        job: Job,
        outlet: Outlet,
        card: ModelCard,
        model: Model | None,
        requests: Sequence[Generate | Chat],
        prompt_tokens: Sequence[int],
        annotations: Mapping[str, Any],
    ) -> Run:
        run = _Run(outlet)
        samples = job.request.n or 1
        limit = card.migration_limit if self._migration_limit is None else self._migration_limit
        include_stop = bool(job.request.include_stop_str_in_output)
        flights: list[Flight] = []
        for index, request in enumerate(requests):
            output: Output | TextOutput
            if isinstance(request, Generate):
                assert model is not None
                skip = job.request.skip_special_tokens is not False
                output = Output(
                    model.tokenizer,
                    request.stops,
                    request.eos_token_ids,
                    prompt_tokens[index],
                    skip_special=skip,
                    continuing=job.kind == "completion",
                    include_stop=include_stop,
                )
            else:
                stops = Stops(max_tokens=request.max_tokens, stop=request.stop or None)
                output = TextOutput(stops, include_stop=include_stop)
            flights.append(
                Flight(
                    request,
                    output,
                    run,
                    index,
                    post=self._post,
                    pick=functools.partial(self._pick, card.name),
                    exact=isinstance(request, Generate) and card.capabilities.exact_continuation,
                    limit=limit,
                    now=self.context.now,
                    landed=self._landed,
                    logprobs=_logprobs_of(model, outlet) if model is not None else None,
                )
            )
        run.flights = flights
        if self._pick(card.name, ()) is None:
            raise Overloaded(f"No instance of model {card.name!r} is ready.", retry_after=1.0)
        outlet.started(len(flights), sum(prompt_tokens[::samples]), annotations)
        for flight in flights:
            if run.over:
                break
            self._flights.add(flight)
            if not flight.send():
                flight.cancel()
                run.fail(Overloaded(f"No instance of model {card.name!r} is ready.", retry_after=1.0))
        return run

    def _pick(self, name: str, tried: Any) -> Any:
        self._turn += not tried
        return choose(self._mode, self._view.serving(name), self._turn, self.context.random, tried)

    def _landed(self, flight: Flight) -> None:
        self._flights.discard(flight)
        self._landed_count += 1

    async def _watch_clocks(self) -> None:
        while True:
            await asyncio.sleep(CLOCK)
            for flight in list(self._flights):
                flight.expire(self._limits)


class _Run:
    """All flights of one request; the first failure ends them all."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.flights: list[Flight] = []
        self.over = False
        self.text, self.chunk, self.finish = outlet.text, outlet.chunk, outlet.finish

    def fail(self, error: RequestError) -> None:
        """One choice failed."""
        if not self.over:
            self.cancel()
            self._outlet.fail(error)

    def cancel(self) -> None:
        """See frontend.base.Run."""
        self.over = True
        for flight in self.flights:
            flight.cancel()


def _logprobs_of(model: Model, outlet: Outlet) -> Callable[[int, Logprobs, Sequence[int]], None]:
    def entry(token: int) -> tuple[str, bytes]:
        raw = model.tokenizer.token_bytes(token) or b""
        return raw.decode(errors="replace"), raw

    def tell(index: int, delta: Logprobs, ids: Sequence[int]) -> None:
        tops = delta.top or ((),) * len(delta.chosen)
        entries = [
            Logprob(*entry(token), value, tuple((*entry(other), logprob) for other, logprob in top))
            for token, value, top in zip(ids, delta.chosen, tops, strict=False)
        ]
        outlet.logprobs(index, tuple(entries))

    return tell


class ProcessorBackend:
    """What the HTTP side holds: the processor's models by reading, its work by mail."""

    def __init__(self, ref: Ref, processor: Processor, view: View) -> None:
        self._ref, self._processor, self._view = ref, processor, view

    def models(self) -> Mapping[str, ModelCard]:
        """See frontend.base.Backend."""
        return self._processor.cards

    def health(self) -> Mapping[str, Any]:
        """See frontend.base.Backend."""
        instances = self._view.all_instances()
        return {
            "endpoints": sorted({f"dyn://{instance.path}" for instance in instances}),
            "instances": [msgspec.to_builtins(instance) for instance in instances],
        }

    async def start(self, job: Job, outlet: Outlet) -> Run:
        """See frontend.base.Backend."""
        try:
            run: Run = await self._ref.ask(Serve(job, outlet), timeout=30.0)
        except (ActorUnreachable, DeadlineExceeded, MailboxFull) as error:
            raise Overloaded(f"the processor is not available: {error}", retry_after=1.0) from None
        return run
