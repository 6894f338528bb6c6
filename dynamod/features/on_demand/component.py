"""The processor of models on demand: it keeps their cards, and has the daemon start and end their workers."""

import asyncio
import logging
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from dynamod.discovery.base import Registry
from dynamod.discovery.keys import KEEPERS, Address
from dynamod.ingress.model_loader import RELOAD
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import DynamodError, UserError
from dynamod.observe.memory import resident
from dynamod.runtime.components.configured import configured_card
from dynamod.runtime.components.processes import Processes
from dynamod.runtime.components.processor import CATCH_UP, ProcessorComponent
from dynamod.runtime.context import ComponentContext, ProcessContext

from .keeper import ModelKeeper, Workers
from .part import PART, ModelsOnDemand
from .settings import OnDemandSettings, names_of

log = logging.getLogger("dynamod.frontend")


class OnDemandComponent(ProcessorComponent):
    """Serves the models of `models:`, loaded or not, and the models of other graphs."""

    settings_type = OnDemandSettings

    def __init__(self, ctx: ComponentContext) -> None:
        super().__init__(ctx)
        assert isinstance(self._settings, OnDemandSettings)
        self._on_demand, budget = self._settings.read()
        self._sizes: dict[str, int] = {}  # bytes, by model
        registry = ctx.process_context.registry
        self._keepers = Keepers(registry)
        targets = {one.component: one.workload for one in self._on_demand.values() if one.workload}
        workers = _workers(targets, Processes(registry))
        self._keeper = ModelKeeper(self._on_demand, budget, workers, self._serves, self._memory, self._keepers.first)
        self.reserved: Mapping[str, str] = names_of(self._on_demand)

    async def started(self) -> None:
        """Read the cards of all models, then look after their workers."""
        await super().started()
        for name, one in self._on_demand.items():
            self.context.task(self._keep(name, one.component), f"card of {name}")
        try:
            async with asyncio.timeout(CATCH_UP):
                while not self._on_demand.keys() <= self.cards.keys():  # noqa: ASYNC110 - read in threads
                    await asyncio.sleep(0.005)
        except TimeoutError:
            log.warning("not all models could be read within %g s; continuing without", CATCH_UP)
        context = self._ctx.process_context
        await self._keepers.join(context)
        ref = self.context.child("models", self._keeper)
        await self.context.system.ready(ref, timeout=60)
        self._view.on_change(self._keeper.look_soon)
        places = {name: f"dyn://{Address(self._ctx.namespace, one.component)}" for name, one in self._on_demand.items()}
        given = self.parts["on_demand"].context
        self.parts.fill({PART: ModelsOnDemand(given, self._keeper, ref, self.reserved, places)})

    async def _keep(self, name: str, component: str) -> None:
        """Read the card of a model from its files, again and again until they are there."""
        for attempt in count(1):
            try:
                card = await self._card(name, component)
                if card.path:
                    self._sizes[name] = await asyncio.to_thread(_bytes, Path(card.path))
                self.models.keep(card)
                return
            except DynamodError as error:
                why = error.line() if isinstance(error, UserError) else str(error)
                log.error("the files of model %s cannot be read: %s", name, why)
            await asyncio.sleep(RELOAD.delay(attempt, self.context.random))

    async def _card(self, name: str, component: str) -> ModelCard:
        return await configured_card(self._ctx, component, name)

    def _announced(self, name: str, card: ModelCard | None) -> None:
        super()._announced(name, card)
        self._keeper.look_soon()

    def _memory(self, model: str) -> int:
        """Resident bytes of its worker; while none is there those of its files. Of a workload always the latter."""
        there = [] if self._on_demand[model].workload else self._workers_of(model)
        return sum(resident(one.pid) for one in there) or self._sizes.get(model, 0)

    def _serves(self, model: str) -> bool:
        """Whether its worker is ready, and that one's card is the one by which requests are prepared."""
        return bool(self._workers_of(model))

    def _workers_of(self, model: str) -> list[Instance]:
        """Ready ones of our graph on our node, or of our workload: what others serve is not ours to end."""
        card, place = self.cards.get(model), self._ctx.process_context
        if card is None:
            return []
        found, component = self._view.served(model, card, "").instances, self._on_demand[model].component
        if self._on_demand[model].workload:
            return [one for one in found if (one.namespace, one.component) == (self._ctx.namespace, component)]
        ours = f"{place.plan.graph}/{component}."
        return [one for one in found if one.node == place.registry.node and one.process.startswith(ours)]


def _workers(targets: Mapping[str, str], processes: Processes) -> Workers:
    if not targets:
        return processes
    from .workloads import Workloads  # with the feature `kubernetes`

    return Workloads(targets, processes)


class Keepers:
    """The processes that keep the models of our graph: while one ends and has requests left the next one is there."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._key = registry, ""
        self._since: dict[str, bytes] = {}  # of all, by key; compared as text

    async def join(self, context: ProcessContext) -> None:
        """Be one of them."""
        prefix = f"{KEEPERS}{context.plan.graph}/"
        self._key = f"{prefix}{await self._registry.leased(timeout=60):x}"
        # All processes of a machine have the same clock. The process whose key is second finds the key of the first.
        self._registry.put(self._key, f"{time.monotonic():020.6f}".encode())
        await context.caught_up(prefix, self._changed)

    def _changed(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._since.pop(key, None)
        else:
            self._since[key] = value

    def first(self) -> bool:
        """Whether none is there that came before us."""
        ours = (self._since.get(self._key, b""), self._key)
        return all(ours <= (since, key) for key, since in self._since.items())


def _bytes(path: Path) -> int:
    """Of a model's file, or of the files in its folder."""
    return sum(one.stat().st_size for one in ([path] if path.is_file() else path.iterdir()) if one.is_file())
