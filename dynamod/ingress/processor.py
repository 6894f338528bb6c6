"""The processor: from an accepted HTTP request to requests in flight on instances. The real `Backend` of the frontend.

It is an actor that loads the models of the registry and owns the tasks of the requests in flight. Its dispatcher is an
actor of its own below it. Requests come by the `ProcessorBackend` that it publishes, not by its mailbox.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.actor import Actor, Reason, Ref, handle
from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.view import View
from dynamod.extension.installed import enabled
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound
from dynamod.message.waits import Waits
from dynamod.migration.base import Limits
from dynamod.migration.stages import StageContext
from dynamod.observe.metrics import Row
from dynamod.preprocess.model import Model
from dynamod.router.decision import Decision
from dynamod.router.placement import DispatcherClient
from dynamod.router.router import RouterSettings
from dynamod.transport.base import Transport

from .askable import Announce
from .base import Job, ResponseSink, Run
from .counts import LoopDelay, Timelines
from .dispatcher import DecisionsOf, Dispatcher, ModelCounts, ModelGone, ModelServed, RouterRows
from .in_flight import RequestsInFlight
from .lowering import Lowered, Served
from .messages import Explain, GetBackend, ProcessorStatistics
from .parts import ProcessorContext, ProcessorParts, make_parts
from .router_metrics import loop_row, stage_rows
from .served_models import ServedModels
from .waits import waits

if TYPE_CHECKING:
    from dynamod.structured.checks import GrammarChecks

log = logging.getLogger("dynamod.frontend")

CLOCK = 0.5
"""Seconds between looks at the clocks of all requests in flight."""


class ProcessorBackend:
    """What a processor publishes for the HTTP side: its models by reading, its work by direct calls.

    A call per request, and not a message, because the request's own task waits for its place in the dispatcher's
    mailbox.
    """

    def __init__(self, ref: Ref, processor: "Processor", view: View) -> None:
        self._processor, self._view = processor, view
        self._start = processor.parts.around(self._begin)

    def models(self) -> Mapping[str, ModelCard]:
        """Models that a request may name now: one whose workers are all stuck waits for them."""
        return self.parts.named(self._processor.models.cards)

    def loading(self) -> Mapping[str, ModelCard]:
        """Models whose tokenizers are being loaded here, by name: a request may name them soon."""
        return self.parts.named(self._processor.models.coming)

    def model(self, name: str) -> Model | None:
        """Tokenizer and chat template of a model that can be asked for; None for a text engine's."""
        return self._processor.model(name)

    @property
    def parts(self) -> ProcessorParts:
        """What features keep in the processor, by their names."""
        return self._processor.parts

    def askable(self) -> Mapping[str, ModelCard]:
        """Models that a request would be placed for now, by name."""
        return self.parts.named(self._processor.models.askable.models())

    def health(self) -> Mapping[str, Any]:
        """See `AskableModels.health`."""
        return self._processor.models.askable.health()

    def decisions(self) -> Sequence[Decision]:
        """The routing decisions that are kept, the oldest request first."""
        return self._processor.dispatch.decisions.all()

    async def start(self, job: Job, sink: ResponseSink) -> Run:
        """Begin to serve. Raises RequestError (BadRequest, NotFound, Overloaded, ...) when it cannot."""
        return await self._start(job, sink)

    async def _begin(self, job: Job, sink: ResponseSink) -> Run:
        timeline = job.timeline
        if timeline is None:
            return await self._processor.requests.start(job, sink, await self._processor.lower(job))
        timeline.lowering = perf_counter()
        lowered = await self._processor.lower(job)
        timeline.lowered = perf_counter()
        self._processor.timelines.keep(job.id, timeline)
        return await self._processor.requests.start(job, sink, lowered)


class ProcessorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are placed and for how long. `decisions`: requests of which the routing decisions are kept.

    `config`: see `Dispatcher`.
    """

    routing: RouterSettings = RouterSettings()
    limits: Limits = Limits()
    migration_limit: int | None = None
    migration_max_seq_len: int | None = None
    decisions: int = 1000
    config: Any = None


class ProcessorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a processor runs. `node()`: the name of the node. `link`, `component`: see `ProcessorContext`."""

    node: Callable[[], str] = lambda: ""
    link: LinkRegistry | None = None
    component: str = ""


class Processor(Actor):
    """Knows the models of the registry, and starts requests. `announce`, `refused`: see `ServedModels`."""

    def __init__(
        self,
        view: View,
        transport: Transport,
        options: ProcessorOptions = ProcessorOptions(),
        place: ProcessorPlace = ProcessorPlace(),
        *,
        announce: Announce = lambda _name, _card: None,
        refused: Callable[[str, str], None] = lambda _name, _why: None,
    ) -> None:
        self._view, self._transport, self._options, self._place = view, transport, options, place
        self._checks: GrammarChecks | None = None
        self._counts: defaultdict[str, ModelCounts] = defaultdict(ModelCounts)
        self._delay = LoopDelay()
        self.parts = ProcessorParts()  # filled by `started`
        self.reserved: Collection[str] = ()  # see `ProcessorContext`
        self.models = ServedModels(view, transport, place.node, self.parts, announce, refused, self._model_changed)
        self.timelines = Timelines(options.decisions)
        self.dispatch = Dispatcher(
            view, transport, options.routing, self._counts, options.decisions, options.config, place.link
        )
        self._requests: RequestsInFlight | None = None

    async def started(self) -> None:
        """Begin to watch models and clocks."""
        self._dispatcher = self.context.child("dispatcher", self.dispatch)
        await self.context.system.ready(self._dispatcher, timeout=10)
        context = StageContext(
            self._view,
            asyncio.get_running_loop().time,  # the system's clock, without the calls between
            self._place.node,
            self._transport,
            DispatcherClient(self._dispatcher, self._view),
            self._options.limits,
            self.dispatch.stages,
        )
        self._requests = requests = RequestsInFlight(
            context,
            self.context.task,
            self._counts,
            migration_limit=self._options.migration_limit,
            longest=self._options.migration_max_seq_len,
            parts=self.parts,
        )
        self.parts.fill(
            make_parts(
                ProcessorContext(
                    self._view,
                    self._transport,
                    lambda: self.models.cards,
                    self.context.task,
                    self._watch,
                    self.parts.held,
                    self.models.revise,
                    self.models.keep,
                    self.models.forget,
                    self.check,
                    self._options.limits.queue,
                    reserved=self.reserved,
                    link=self._place.link,
                    component=self._place.component,
                )
            )
        )
        self._watch(requests.instances_changed)
        self.models.follow(self.context)
        self.context.task(self._watch_clocks(requests), "clocks")
        for part in self.parts.values():
            await part.prepare()

    def _watch(self, watcher: Callable[[], None]) -> None:
        self._view.on_change(self.context.callback(watcher))

    async def stopping(self, reason: Reason) -> None:
        """End what compiles grammars."""
        if self._checks is not None:
            self._checks.close()

    @handle
    async def explain_request(self, message: Explain) -> list[dict[str, Any]]:
        """Why a request went where it went."""
        name = message.request.removeprefix("chatcmpl-").removeprefix("cmpl-").removeprefix("msg_")
        records = self._records(await self._dispatcher.ask(DecisionsOf(name), timeout=5.0))
        if records and (told := self.timelines.told(str(records[0]["request"]).partition("#")[0])) is not None:
            records[0]["times"] = told
        return records

    @handle
    async def router_rows(self, message: RouterRows) -> list[Row]:
        """What metrics show of the routers."""
        asked = replace(message, migration_limit=self._options.migration_limit)
        rows: list[Row] = await self._dispatcher.ask(asked, timeout=5.0)
        return [*rows, *stage_rows(self._waits(), message.prefix), loop_row(self._delay, message.prefix)]

    @handle
    async def get_backend(self, message: GetBackend) -> ProcessorBackend:
        """How requests come."""
        return ProcessorBackend(self.context.ref, self, self._view)

    def _records(self, decisions: list[Decision]) -> list[dict[str, Any]]:
        names = {instance.instance_id: instance.process for instance in self._view.all_instances()}
        none = dict.fromkeys(name for one in enabled() for name in one.notes)
        found: list[dict[str, Any]] = []
        for decision in decisions:
            record = msgspec.to_builtins(decision)
            notes = record.pop("notes")
            for one in (*record["candidates"], *notes.values()):
                if isinstance(one, dict) and "instance" in one:
                    one["process"] = names.get(one["instance"], "")
            found.append({**record, **none, **notes, "overlap": decision.overlap, "regret": decision.regret})
        return found

    def statistics(self) -> ProcessorStatistics:
        """A snapshot."""
        requests = self._requests
        counts = (requests.started, len(requests), requests.completed) if requests is not None else (0, 0, 0)
        failed, loading = dict(self.models.failed), tuple(self.models.loading)
        return ProcessorStatistics(*counts, len(self.cards), failed, loading, tuple(self._waits()))

    def _waits(self) -> Iterator[Waits]:
        unanswered = self._requests.unanswered() if self._requests is not None else {}
        return waits(self.dispatch, unanswered, self._starts)

    def _starts(self, model: str) -> bool:
        card = self.cards.get(model)
        return card is not None and self.parts.starts(card)

    def inspection(self) -> dict[str, Any]:
        """The statistics and the models."""
        return {**msgspec.to_builtins(self.statistics()), "model_names": sorted(self.cards)}

    @property
    def cards(self) -> Mapping[str, ModelCard]:
        """See `ServedModels.cards`."""
        return self.models.cards

    def _model_changed(self, name: str, card: ModelCard | None) -> None:
        """A model has been loaded or is gone. The router of a model follows its workers, and those of its adapters."""
        if card is None:
            self._counts.pop(name, None)
            self._dispatcher.send_nowait(ModelGone(name))
        elif not card.parent:
            self._dispatcher.send_nowait(ModelServed(card))

    @property
    def requests(self) -> RequestsInFlight:
        """What starts requests, from `started` on."""
        assert self._requests is not None
        return self._requests

    # Requests.

    async def lower(self, job: Job) -> Lowered:
        """Check a request and make its engine requests, in the caller's task: a long prompt blocks no other request.

        Raises RequestError.
        """
        name = job.request.model
        card = self.models.cards.get(name)
        if card is None:
            known = ", ".join(sorted(self.cards)) or "none"
            raise NotFound(f"The model {name!r} does not exist. Models served now: {known}.", param="model")
        if card.parent and self._view.card(name) is None and self._view.served(card.parent, None, "").instances:
            why = f"the workers of {card.parent!r} do not have the adapter {name!r}; their logs say why"
            raise NotFound(why, param="model", code="adapter_not_found")
        counts, model, parsers = self._counts[card.base], self.models.tokenizers[name], self.models.parsers[name]
        served = Served(
            card,
            model,
            self.context.random,
            self.dispatch.needs_blocks,
            counts.overhead.block_hashing,
            counts.preparation,
            parsers,
            self._grammar_checks,
        )
        entered = counts.preprocess.enter()
        try:
            return await job.endpoint.lower(job, served)
        finally:
            counts.preprocess.leave(entered)

    def _grammar_checks(self) -> "GrammarChecks":
        if self._checks is None:
            from dynamod.structured.checks import GrammarChecks  # with the first request that asks for a form

            self._checks = GrammarChecks()
        return self._checks

    async def check(self, job: Job) -> None:
        """Lower a request whose card a worker has published. Raises RequestError."""
        name = job.request.model
        card = self.cards.get(name)
        if card is not None and card is not self.models.kept(name):
            await self.lower(job)

    def model(self, name: str) -> Model | None:
        """Tokenizer and chat template of a model that can be asked for; None for a text engine's."""
        return self.models.tokenizers.get(name)

    async def _watch_clocks(self, requests: RequestsInFlight) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due = now() + CLOCK
            await asyncio.sleep(CLOCK)
            self._delay.observe(now() - due)
            requests.look()
