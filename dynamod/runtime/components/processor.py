"""The processor component: preprocessing, routing and migration in the ingress process."""

import asyncio
import logging
from typing import ClassVar

import msgspec

from dynamod.actor import Reason
from dynamod.discovery.keys import CARDS, STATIC, Address, place_of
from dynamod.discovery.records import keep
from dynamod.discovery.view import View
from dynamod.graph.typed import given, validate
from dynamod.ingress.dispatcher import Dispatcher
from dynamod.ingress.processor import Processor, ProcessorOptions, ProcessorPlace
from dynamod.ingress.settings import ProcessorSettings, from_environment
from dynamod.ingress.static_workers import StaticWorkers
from dynamod.message.discovery import Instance, ModelCard
from dynamod.preprocess.card import read_card
from dynamod.preprocess.reference import model_name
from dynamod.runtime.context import ComponentContext

from .served import SERVED, UNSERVED, ServedModel, UnservedModel

log = logging.getLogger("dynamod.frontend")

CATCH_UP = 5.0
"""Seconds that the frontend waits for models that are there already, after a restart for example."""

ENDPOINTS = {
    "chat": "chat/completions",
    "completions": "completions",
    "embeddings": "embeddings",
    "score": "score",
}


class ProcessorComponent(Processor):
    """Serves the models of the whole registry, or only those at `only_endpoint`; there static workers too."""

    settings_type: ClassVar[type[ProcessorSettings]] = ProcessorSettings

    def __init__(self, ctx: ComponentContext) -> None:
        self._ctx = ctx
        self._settings = settings = validate(self.settings_type, given(ctx.config, from_environment()), ctx.name)
        self._only = Address.parse(settings.only_endpoint) if settings.only_endpoint else None
        self._static_here: dict[str, Instance] = {}
        self._static = (settings.static_model or "", settings.static_model_name or "")
        registry = ctx.process_context.registry
        super().__init__(
            ctx.process_context.view if self._only is None else View(registry, self._only),
            ctx.process_context.transport,
            ProcessorOptions(
                routing=settings.routing(),
                limits=settings.limits(),
                migration_limit=settings.migration_limit,
                migration_max_seq_len=settings.migration_max_seq_len,
                config=settings,
            ),
            ProcessorPlace(node=lambda: registry.node, link=registry, component=ctx.name),
            announce=self._announced,
            refused=self._refuses,
        )

    async def started(self) -> None:
        """Wait for the lease, then until the models that are there now can be asked for: the frontend starts then."""
        process_context = self._ctx.process_context
        await process_context.registry.leased(timeout=60)
        process_context.follow_exits()
        await super().started()
        process_context.processor = self.context.ref
        if self._static[0]:
            await self._follow_static(*self._static)
        try:
            async with asyncio.timeout(CATCH_UP):
                await self._caught_up()
        except TimeoutError:
            log.warning("not all models could be loaded within %g s; continuing without", CATCH_UP)

    async def _follow_static(self, model: str, name: str) -> None:
        """The model is known from here on; the worker may come when it likes."""
        assert self._only is not None
        prefix = f"{STATIC}{place_of(self._only)}/"
        self._ctx.process_context.registry.watch(prefix, keep(self._static_here, Instance))
        path = await self._ctx.fetch(model, weights=False)
        card = await asyncio.to_thread(read_card, path, name=name or model_name(model, path))
        static = StaticWorkers(self._view, self._ctx.process_context.transport, card, self._static_instances)
        await static.look()
        self.context.task(static.run(), "static workers")

    def _static_instances(self) -> list[Instance]:
        """Processes that may exist: entries of the node's registry, and the address on other nodes."""
        assert self._only is not None
        elsewhere = self._ctx.process_context.static_instance(self._only)
        return list(self._static_here.values()) or ([elsewhere] if elsewhere is not None else [])

    async def _caught_up(self) -> None:
        await self._ctx.process_context.caught_up(CARDS, lambda _key, _value: None)
        while not self._view.models().keys() <= self.cards.keys():  # noqa: ASYNC110 - loaded in threads
            await asyncio.sleep(0.005)

    async def stopping(self, reason: Reason) -> None:
        """Let go of the workers' feeds; the registry drops what stood under the lease."""
        dispatch: Dispatcher | None = getattr(self, "dispatch", None)  # there from `started` on
        if dispatch is not None:
            dispatch.close()

    def _announced(self, name: str, card: ModelCard | None) -> None:
        registry = self._ctx.process_context.registry
        for kind, endpoint in ENDPOINTS.items():
            key = f"{SERVED}{kind}/{name}/{registry.lease:x}"
            if card is not None and kind in card.types:
                served = ServedModel(kind, name, self._ctx.namespace, self._ctx.component, endpoint)
                registry.put(key, msgspec.json.encode(served))
            else:
                registry.delete(key)

    def _refuses(self, name: str, why: str) -> None:
        registry = self._ctx.process_context.registry
        key = f"{UNSERVED}{name}/{registry.lease:x}"
        if why:
            registry.put(key, msgspec.json.encode(UnservedModel(name, why)))
        else:
            registry.delete(key)
