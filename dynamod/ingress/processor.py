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
from dynamod.discovery.view import View, disagree
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

from .askable import Announce, AskableModels
from .base import Job, ResponseSink, Run
from .counts import LoopDelay, Timelines
from .dispatcher import DecisionsOf, Dispatcher, ModelCounts, ModelGone, ModelServed, RouterRows
from .in_flight import RequestsInFlight
from .lowering import Lowered, Served
from .messages import Explain, GetBackend, ProcessorStatistics
from .model_loader import ModelLoader
from .parsing import ModelParsers
from .parts import ProcessorContext, ProcessorParts, make_parts
from .router_metrics import loop_row, stage_rows
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

    def models(self) -> Mapping[str, ModelCard]:
        """Models that a request may name now: one whose workers are all stuck waits for them."""
        return self.parts.named(self._processor.cards)

    def model(self, name: str) -> Model | None:
        """Tokenizer and chat template of a model that can be asked for; None for a text engine's."""
        return self._processor.model(name)

    @property
    def parts(self) -> ProcessorParts:
        """What features keep in the processor, by their names."""
        return self._processor.parts

    def askable(self) -> Mapping[str, ModelCard]:
        """Models that a request would be placed for now, by name."""
        return self.parts.named(self._processor.askable.models())

    def health(self) -> Mapping[str, Any]:
        """See `AskableModels.health`."""
        return self._processor.askable.health()

    def decisions(self) -> Sequence[Decision]:
        """The routing decisions that are kept, the oldest request first."""
        return self._processor.dispatch.decisions.all()

    async def start(self, job: Job, sink: ResponseSink) -> Run:
        """Begin to serve. Raises RequestError (BadRequest, NotFound, Overloaded, ...) when it cannot."""
        return await self._processor.parts.start(job, sink, self._begin)

    async def _begin(self, job: Job, sink: ResponseSink) -> Run:
        timeline = job.timeline
        if timeline is None:
            return await self._processor.requests.start(job, sink, await self._processor.lower(job))
        timeline.lowering = perf_counter()
        lowered = await self._processor.lower(job)
        timeline.lowered = perf_counter()
        self._processor.timelines.keep(job.id, timeline)
        return await self._processor.requests.start(job, sink, lowered)


class Processor(Actor):
    """Knows the models of the registry, loads their tokenizers, and starts requests.

    `announce`: see `AskableModels`. `refused(name, why)` is called when the files of a model are of no use, and with an
    empty text when that is over. `node()`: the name of this node;
    models of workers on other nodes are fetched when they are not found here. `decisions`: requests of which the
    routing decisions are kept. `config`: see `Dispatcher`. `link`, `component`: see `ProcessorContext`.
    """

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
        refused: Callable[[str, str], None] = lambda _name, _why: None,
        node: Callable[[], str] = lambda: "",
        decisions: int = 1000,
        config: Any = None,
        link: LinkRegistry | None = None,
        component: str = "",
    ) -> None:
        self._view, self._transport = view, transport
        self._limits, self._migration_limit, self._longest_move = limits, migration_limit, migration_max_seq_len
        self._node = node
        self._checks: GrammarChecks | None = None
        self._loading: dict[str, ModelCard] = {}
        self._models: dict[str, Model | None] = {}  # None: a text engine, nothing to load
        self._parsers: dict[str, ModelParsers] = {}
        self._kept: dict[str, ModelCard] = {}  # of models that can be asked for without a worker
        self._counts: defaultdict[str, ModelCounts] = defaultdict(ModelCounts)
        self._delay = LoopDelay()
        self._cards: dict[str, ModelCard] = {}
        self._outdated = False  # other workers may be there than when the cards were read
        self.parts = ProcessorParts()  # filled by `started`
        self.reserved: Collection[str] = ()  # see `ProcessorContext`
        self._link, self._component = link, component
        self.askable = AskableModels(
            view, lambda: self.cards, self._kept.__contains__, self._coming, self.parts, announce
        )
        self._loader = ModelLoader(view, transport, node, refused, self.askable.look)
        self.timelines = Timelines(decisions)
        self.dispatch = Dispatcher(view, transport, routing, self._counts, decisions, config, link)
        self._requests: RequestsInFlight | None = None

    async def started(self) -> None:
        """Begin to watch models and clocks."""
        self._dispatcher = self.context.child("dispatcher", self.dispatch)
        await self.context.system.ready(self._dispatcher, timeout=10)
        context = StageContext(
            self._view,
            asyncio.get_running_loop().time,  # the system's clock, without the calls between
            self._node,
            self._transport,
            DispatcherClient(self._dispatcher, self._view),
            self._limits,
            self.dispatch.stages,
        )
        self._requests = requests = RequestsInFlight(
            context,
            self.context.task,
            self._counts,
            migration_limit=self._migration_limit,
            longest=self._longest_move,
            parts=self.parts,
        )
        self.parts.fill(
            make_parts(
                ProcessorContext(
                    self._view,
                    self._transport,
                    lambda: self.cards,
                    self.context.task,
                    self._watch,
                    self.parts.held,
                    self._revise,
                    self.keep,
                    self.forget,
                    self.check,
                    self._limits.queue,
                    reserved=self.reserved,
                    link=self._link,
                    component=self._component,
                )
            )
        )
        self._view.on_model(self.context.callback(self._model_changed))
        for watcher in (self._changed, requests.instances_changed, self.askable.look):
            self._watch(watcher)
        for name, card in self._view.models().items():
            self._model_changed(name, card)
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
        asked = replace(message, migration_limit=self._migration_limit)
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
        failed, loading = dict(self._loader.failed), tuple(self._loading)
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
    def requests(self) -> RequestsInFlight:
        """What starts requests, from `started` on."""
        assert self._requests is not None
        return self._requests

    # Models.

    def keep(self, card: ModelCard) -> None:
        """Advertise the model although it has no worker. The card of a later worker may say more of the model.

        The adapters that its workers will have, too.
        """
        self._kept[card.name] = card
        if card.name not in self.cards and card.name not in self._loading:
            self._model_changed(card.name, card)
        if not card.parent:
            self.revise_kept()
        self.askable.look()

    def forget(self, name: str) -> None:
        """Advertise the model only while it has a worker."""
        below = self._kept.pop(name)
        if self._view.card(name) is None:
            self._model_changed(name, None)
        if not below.parent:
            self.revise_kept()
        self.askable.look()

    def revise_kept(self) -> None:
        """A model is kept or not, or new workers of a model would publish another card."""
        below = [card for card in self._kept.values() if not card.parent]
        wanted = {one.name: one for card in below for one in self.parts.starting_card(card).each()[1:]}
        for name in [name for name, card in self._kept.items() if card.parent and name not in wanted]:
            self.forget(name)
        for name, card in wanted.items():
            there = self._kept.get(name) or self.cards.get(name) or card
            if there.parent == card.parent and self._kept.get(name) != card:  # else another model has the name
                self.keep(card)

    def _revise(self) -> None:
        self.revise_kept()
        self.askable.look()

    @property
    def cards(self) -> Mapping[str, ModelCard]:
        """Of the models that can be asked for, by name: those of their first workers, with what all can do now."""
        if self._outdated:
            self._outdated = False
            for name, card in self._cards.items():
                can = self._view.capabilities(card)
                if can is not None and can != card.capabilities:
                    self._cards[name] = msgspec.structs.replace(card, capabilities=can)
        return self._cards

    def _changed(self) -> None:
        self._outdated = True

    def _coming(self, name: str) -> ModelCard | None:
        """The card that is being loaded, unless its files are of no use."""
        return None if name in self._loader.failed else self._loading.get(name)

    def _model_changed(self, name: str, card: ModelCard | None) -> None:
        self._loading.pop(name, None)
        self._loader.clear(name)
        if name in self._kept:
            here = self.cards.get(name)
            if card is None and here is not None:
                return
            card = card or self._kept[name]
            if here is not None and not disagree(card, here):
                self._ready(name, self._models[name], card)  # the same tokenizer: a worker has come back
                return
        if card is None:
            self._models.pop(name, None)
            self._parsers.pop(name, None)
            self._counts.pop(name, None)
            self._dispatcher.send_nowait(ModelGone(name))
            self._cards.pop(name, None)
            self.askable.look()
        elif card.parent:
            self._loading[name] = card
            self._take_adapter(name, card)
        elif card.kind == "text":
            self._ready(name, None, card)
        else:
            self._loading[name] = card
            self.context.task(self._load(name, card), f"load {name}")

    def _take_adapter(self, name: str, card: ModelCard) -> None:
        """An adapter can be asked for when the model below it can: it has the same tokenizer."""
        below = self.cards.get(card.parent)
        if below is not None and (below.kind, below.mdc_sum) == (card.kind, card.mdc_sum):
            del self._loading[name]
            self._ready(name, self._models[card.parent], card)

    async def _load(self, name: str, card: ModelCard) -> None:
        def wanted() -> bool:
            return self._loading.get(name) is card  # else it is gone, or another model has taken the name

        model = await self._loader.load(card, wanted, self.context.random)
        if model is not None and wanted():
            del self._loading[name]
            self._ready(name, model, card)
            await self._loader.hasten(name, model)

    def _ready(self, name: str, model: Model | None, card: ModelCard) -> None:
        self._loader.clear(name)
        self._models[name] = model
        self._parsers[name] = parsers = ModelParsers(card, model)
        self._cards[name] = card = parsers.card
        self._changed()
        log.info(
            "model %s: parser of tool calls %s, of reasoning %s", name, card.tool_call_parser, card.reasoning_parser
        )
        if not card.parent:  # else the router of the model below decides
            self._dispatcher.send_nowait(ModelServed(card))  # it follows the workers from now on
        self.askable.look()
        for other, waiting in [one for one in self._loading.items() if one[1].parent == name]:
            self._take_adapter(other, waiting)

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
        if card.parent and self._view.card(name) is None and self._view.served(card.parent, None, "").instances:
            why = f"the workers of {card.parent!r} do not have the adapter {name!r}; their logs say why"
            raise NotFound(why, param="model", code="adapter_not_found")
        counts, model, parsers = self._counts[card.base], self._models[name], self._parsers.get(name)
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
        if card is not None and card is not self._kept.get(name):
            await self.lower(job)

    def model(self, name: str) -> Model | None:
        """Tokenizer and chat template of a model that can be asked for; None for a text engine's."""
        return self._models.get(name)

    async def _watch_clocks(self, requests: RequestsInFlight) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due = now() + CLOCK
            await asyncio.sleep(CLOCK)
            self._delay.observe(now() - due)
            requests.look()
