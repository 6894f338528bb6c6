"""The processor: from an accepted HTTP request to flights on instances. The real `Backend` of the front door.

It is an actor with one message per request (`Serve`); after that the flights call the outlet directly.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.actor import Actor, ActorUnreachable, DeadlineExceeded, MailboxFull, Ref, Total, handle
from dynamod.discovery.view import View
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound, Overloaded, RequestError, UserError
from dynamod.message.ingress import Logprobs
from dynamod.message.worker import Generate
from dynamod.migration.request import InFlightRequest, Limits
from dynamod.preprocess.model import Model
from dynamod.router.router import Prompt, RouterSettings
from dynamod.transport.base import Transport

from .base import Job, Logprob, ResponseSink, Run
from .dispatcher import Dispatcher, Route
from .lowering import Lowered, Served
from .memory import trim_memory

if TYPE_CHECKING:
    from .model_files import ModelFiles

log = logging.getLogger("dynamod.frontend")

CLOCK = 0.5
"""Seconds between looks at the clocks of all flights."""


class ProcessorStatistics(msgspec.Struct, frozen=True):
    """Requests taken, flights in the air, flights landed, models ready."""

    requests: Total
    flights: int
    landed: Total
    models: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Begin to serve a request. `runs` gets its run: a sender that leaves may never hear the reply."""

    job: Job
    sink: ResponseSink
    lowered: Lowered
    runs: list[Run] = field(default_factory=list[Run])


Announce = Callable[[str, ModelCard | None], None]


class Processor(Actor):
    """Knows the models of the registry, loads their tokenizers, and starts flights.

    `announce(name, card)` is told when a model can be asked for here, and with None when no longer. `node()`: the name
    of this node; models of workers on other nodes are fetched when they are not found here.
    """

    mailbox_capacity = 4096

    def __init__(
        self,
        view: View,
        transport: Transport,
        *,
        routing: RouterSettings = RouterSettings(),
        limits: Limits = Limits(),
        migration_limit: int | None = None,
        migration_max_seq_len: int | None = None,
        announce: Announce = lambda _name, _card: None,
        node: Callable[[], str] = lambda: "",
    ) -> None:
        self._view, self._transport = view, transport
        self._routing, self._limits, self._migration_limit = routing, limits, migration_limit
        self._longest_move = migration_max_seq_len
        self._announce = announce
        self._node = node
        self._files: ModelFiles | None = None
        self._loading: dict[str, ModelCard] = {}
        self._models: dict[str, Model | None] = {}  # None: a text engine, nothing to load
        self.cards: dict[str, ModelCard] = {}
        self._in_flight: dict[InFlightRequest, None] = {}  # in the order in which they took off: so clocks act, too
        self._requests = self._completed_count = 0

    async def started(self) -> None:
        """Begin to watch models and clocks."""
        self.dispatch = Dispatcher(self._view, self._transport, self._routing, self.context.random, self.context.task)
        self._view.on_model(self._model_changed)
        self._view.on_change(self._leave_quarantined)
        for name, card in self._view.models().items():
            self._model_changed(name, card)
        self.context.task(self._watch_clocks(), "clocks")

    @handle
    async def serve(self, message: Serve) -> "Run | RequestError":
        """Start a request's flights. What is wrong with the request is the reply."""
        try:
            run = self._start(message.job, message.sink, message.lowered)
        except RequestError as error:
            return error
        message.runs.append(run)
        return run

    def statistics(self) -> ProcessorStatistics:
        """A snapshot."""
        return ProcessorStatistics(self._requests, len(self._in_flight), self._completed_count, len(self.cards))

    def inspection(self) -> dict[str, Any]:
        """The statistics and the models."""
        return {**msgspec.to_builtins(self.statistics()), "model_names": sorted(self.cards)}

    def explain(self, request: str) -> list[dict[str, Any]]:
        """The decisions for a request as JSON-like records; an answer's `id` will do too."""
        names = {instance.instance_id: instance.process for instance in self._view.all_instances()}
        found: list[dict[str, Any]] = []
        for decision in self.dispatch.decisions.of(request.removeprefix("chatcmpl-").removeprefix("cmpl-")):
            record = msgspec.to_builtins(decision)
            for candidate in record["candidates"]:
                candidate["process"] = names.get(candidate["instance"], "")
            found.append({**record, "overlap": decision.overlap, "regret": decision.regret})
        return found

    # Models.

    def _model_changed(self, name: str, card: ModelCard | None) -> None:
        self._loading.pop(name, None)
        if card is None:
            self._models.pop(name, None)
            self.dispatch.drop(name)
            if self.cards.pop(name, None) is not None:
                self._announce(name, None)
        elif card.kind == "text":
            self._ready(name, None, card)
        else:
            self._loading[name] = card
            self.context.task(self._load(name, card), f"load {name}")

    async def _load(self, name: str, card: ModelCard) -> None:
        def wanted() -> bool:
            return self._loading.get(name) is card  # else it is gone, or another model has taken the name

        try:
            here = await self._files_of(card, wanted)
            if here is None:
                return
            model = await asyncio.to_thread(Model.load, here, use_fast_backend=False)
        except UserError as error:
            log.error("cannot serve model %s: %s", name, error.line())
            return
        except Exception:
            log.exception("cannot serve model %s: its tokenizer or template failed to load", name)
            return
        if not wanted():
            return
        self._ready(name, model, card)
        await asyncio.to_thread(model.tokenizer.use_fast_backend)
        await asyncio.to_thread(trim_memory)  # loading took several times what is kept

    async def _files_of(self, card: ModelCard, wanted: Callable[[], bool]) -> ModelCard | None:
        """The card with paths that can be read here; None when it is not wanted any more."""
        nodes = {instance.node for instance in self._view.serving(card.name, card)}
        meant_for_us = nodes == {self._node()}  # else it may be the path of a worker elsewhere
        if meant_for_us and await asyncio.to_thread(os.path.exists, card.config_path or card.path):
            return card
        if self._files is None:
            from .model_files import ModelFiles  # a node that is alone does not need it, and starts sooner

            self._files = ModelFiles(self._transport, self._node)
        return await self._files.find(card, lambda: self._view.serving(card.name, card), wanted)

    def _ready(self, name: str, model: Model | None, card: ModelCard) -> None:
        self._models[name] = model
        self.cards[name] = card
        self.dispatch.router(card)  # it follows the workers from now on
        self._announce(name, card)

    # Requests.

    async def lower(self, job: Job) -> Lowered:
        """Check a request and make its engine requests, in the caller's task: a long prompt blocks no other request.

        Raises RequestError.
        """
        name = job.request.model
        card = self.cards.get(name)
        if card is None:
            known = ", ".join(sorted(self.cards)) or "none"
            raise NotFound(f"The model {name!r} does not exist. Models served now: {known}.", param="model")
        hashing = self.dispatch.overhead(name).block_hashing
        served = Served(card, self._models[name], self.context.random, self._routing.needs_blocks, hashing)
        return await job.endpoint.lower(job, served)

    def model(self, name: str) -> Model | None:
        """Tokenizer and chat template of a model that can be asked for; None for a text engine's."""
        return self._models.get(name)

    def _start(self, job: Job, sink: ResponseSink, lowered: Lowered) -> Run:
        card, model = lowered.card, lowered.model
        self._requests += 1
        run = _Run(sink)
        limit = card.migration_limit if self._migration_limit is None else self._migration_limit
        in_flight: list[InFlightRequest] = []
        for index, request in enumerate(lowered.requests):
            in_flight.append(
                InFlightRequest(
                    request,
                    lowered.outputs[index],
                    run,
                    index,
                    transport=self._transport,
                    route=self.dispatch.route(card, self._prompt(job, lowered, index)),
                    exact=isinstance(request, Generate) and card.capabilities.exact_continuation,
                    limit=limit,
                    now=asyncio.get_running_loop().time,  # the system's clock, without the calls between
                    completed=self._completed,
                    logprobs=_logprobs_of(model, sink) if model is not None else None,
                    migrations=self.dispatch.migrations(card.name),
                    longest=self._longest_move,
                )
            )
        run.in_flight = in_flight
        if not self._view.serving(card.name, card):
            raise Overloaded(f"No instance of model {card.name!r} is ready.", retry_after=1.0)
        if job.request.wants("query_instance_id"):
            self._tell_instance(sink, lowered, self.dispatch.route(card, self._prompt(job, lowered, 0)))
            return run
        sink.started(len(in_flight), sum(lowered.prompt_tokens[:: lowered.samples]), lowered.annotations)
        for inflight in in_flight:
            if run.over:
                break
            self._in_flight[inflight] = None
            if not inflight.send() and not self._queued(job, card.name, inflight):
                inflight.cancel()
                run.fail(Overloaded(f"No instance of model {card.name!r} can take the request.", retry_after=1.0))
        return run

    @staticmethod
    def _tell_instance(sink: ResponseSink, lowered: Lowered, route: Route) -> None:
        """Say where the request would go, and what it would be; nothing is generated."""
        instance = route.pick(())
        route.end()
        if instance is None:
            raise Overloaded(f"No instance of model {lowered.card.name!r} can take the request.", retry_after=1.0)
        told: dict[str, Any] = {**lowered.annotations, "worker_instance_id": instance.instance_id}
        request = lowered.requests[0]
        if isinstance(request, Generate):
            told["token_data"] = list(tokens.unpack(request.token_ids))
        sink.started(1, lowered.prompt_tokens[0], told)
        sink.finish(0, "stop", 0)

    def _queued(self, job: Job, model: str, inflight: InFlightRequest) -> bool:
        """Whether a flight waits for a worker that is not busy; one that asks for a worker by its id does not."""
        nvext = job.request.nvext
        if nvext is not None and nvext.backend_instance_id is not None:
            return False
        hints = nvext.agent_hints if nvext is not None else None
        priority = hints.get("priority") if isinstance(hints, dict) else None
        return self.dispatch.wait(model, inflight, priority if isinstance(priority, int) else 0)

    @staticmethod
    def _prompt(job: Job, lowered: Lowered, index: int) -> Prompt:
        nvext = job.request.nvext
        blocks = lowered.blocks[index] if lowered.blocks else ()
        session = job.request.prompt_cache_key or ""
        if nvext is None:
            return Prompt(job.id, lowered.prompt_tokens[index], blocks, session=session)
        override = nvext.router_config_override
        return Prompt(
            job.id,
            lowered.prompt_tokens[index],
            blocks,
            nvext.backend_instance_id,
            override.overlap_score_weight if override is not None else None,
            override.router_temperature if override is not None else None,
            session,
        )

    def _leave_quarantined(self) -> None:
        for inflight in list(self._in_flight):
            if inflight.instance is not None and self._view.quarantined(inflight.instance):
                inflight.leave("the worker's process does not answer any more")

    def _completed(self, inflight: InFlightRequest) -> None:
        self._in_flight.pop(inflight, None)
        self._completed_count += 1

    async def _watch_clocks(self) -> None:
        while True:
            await asyncio.sleep(CLOCK)
            for inflight in list(self._in_flight):
                inflight.expire(self._limits)
            self.dispatch.expire()


class _Run:
    """All flights of one request; the first failure ends them all."""

    def __init__(self, sink: ResponseSink) -> None:
        self._outlet = sink
        self.in_flight: list[InFlightRequest] = []
        self.over = False
        self.text, self.chunk, self.finish = sink.text, sink.chunk, sink.finish

    def fail(self, error: RequestError) -> None:
        """One choice failed."""
        if not self.over:
            self.cancel()
            self._outlet.fail(error)

    def cancel(self) -> None:
        """See ingress.base.Run."""
        self.over = True
        for inflight in self.in_flight:
            inflight.cancel()


def _logprobs_of(model: Model, sink: ResponseSink) -> Callable[[int, Logprobs, Sequence[int]], None]:
    def entry(token: int) -> tuple[str, bytes]:
        raw = model.tokenizer.token_bytes(token) or b""
        return raw.decode(errors="replace"), raw

    def tell(index: int, delta: Logprobs, ids: Sequence[int]) -> None:
        tops = delta.top or ((),) * len(delta.chosen)
        entries = [
            Logprob(*entry(token), value, tuple((*entry(other), logprob) for other, logprob in top))
            for token, value, top in zip(ids, delta.chosen, tops, strict=False)
        ]
        sink.logprobs(index, tuple(entries))

    return tell


class ProcessorBackend:
    """What the HTTP side holds: the processor's models by reading, its work by mail."""

    def __init__(self, ref: Ref, processor: Processor, view: View) -> None:
        self._ref, self._processor, self._view = ref, processor, view

    def models(self) -> Mapping[str, ModelCard]:
        """See ingress.base.Backend."""
        return self._processor.cards

    def model(self, name: str) -> Model | None:
        """See ingress.base.Backend."""
        return self._processor.model(name)

    def health(self) -> Mapping[str, Any]:
        """See ingress.base.Backend."""
        serving = [instance for name in self._processor.cards for instance in self._view.serving(name)]
        shown = [instance for instance in self._view.all_instances() if instance.endpoint != "load_metrics"]
        rows = [msgspec.to_builtins(instance) for instance in shown]
        for row in rows:
            del row["transport"]  # the places of sockets are for those inside
        return {"endpoints": sorted({f"dyn://{instance.path}" for instance in serving}), "instances": rows}

    async def start(self, job: Job, sink: ResponseSink) -> Run:
        """See ingress.base.Backend."""
        message = Serve(job, sink, await self._processor.lower(job))
        try:
            run: Run = await self._ref.ask(message, timeout=30.0)
        except (ActorUnreachable, DeadlineExceeded, MailboxFull) as error:
            raise Overloaded(f"the processor is not available: {error}", retry_after=1.0) from None
        except asyncio.CancelledError:
            for begun in message.runs:  # the client left while the reply was on its way
                begun.cancel()
            raise
        return run
