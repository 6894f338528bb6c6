"""Models of pools that may have no workers: clients still see these models, and their waiting requests are counted."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import count

import msgspec

from dynamod.actor import Context
from dynamod.discovery.keys import WANTED, parked_key
from dynamod.discovery.records import decoded
from dynamod.ingress.model_loader import RELOAD
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.pools import ParkedModel, WantedModel
from dynamod.runtime.components.configured import configured_card
from dynamod.runtime.context import ComponentContext

from .reconcile import Refusal

log = logging.getLogger("dynamod.planner")

PROBLEMS: dict[Refusal, str] = {
    "disabled": "its planner only advises",
    "paused": "its planner is paused",
    "manual": "its number of workers was changed by hand; see `dynamo planner resume`",
    "workers_fail": "its workers do not become ready",
    "no_devices": "no GPU is free for it, or no memory",
    "cluster_lost": "this node has lost its cluster",
}
"""Why a planner starts no worker although requests wait."""


class Parking:
    """`places`: of components, dyn://... `woken`: called when requests begin to wait for a model."""

    def __init__(
        self, ctx: ComponentContext, context: Context, places: Mapping[str, str], woken: Callable[[], None]
    ) -> None:
        self._ctx, self._context, self._places, self._woken = ctx, context, places, woken
        self._cards: dict[str, ModelCard] = {}  # by component
        self._published: dict[str, ParkedModel] = {}
        self._waiting: dict[str, WantedModel] = {}
        ctx.process_context.registry.watch(WANTED, self._wanted)

    def keep(self, component: str) -> None:
        """The pool of this component may have no workers."""
        if component not in self._cards:
            self._context.task(self._read(component), f"card of {component}")

    async def _read(self, component: str) -> None:
        """The card as the settings say it, again and again until its files are there."""
        for attempt in count(1):
            try:
                self._cards[component] = await configured_card(self._ctx, component)
                self.tell(component)
                return
            except (DynamodError, OSError) as error:
                why = error.line() if isinstance(error, UserError) else str(error)
                log.error("the model of %s cannot be read: %s", component, why)
            await asyncio.sleep(RELOAD.delay(attempt, self._context.random))

    def tell(self, component: str, startup: float = 0.0, refused: Refusal = "", why: str = "") -> None:
        """Publish that the model can be asked for. `refused`: why no worker would be started; `why`: an error."""
        card = self._cards.get(component)
        if card is None:
            return
        problem = PROBLEMS.get(refused, "")
        place = self._places[component]
        problem = f"{problem}: {why}" if problem and why else problem
        record = ParkedModel(card=card, place=place, startup=round(startup, 1), problem=problem)
        if self._published.get(component) != record:
            self._published[component] = record
            registry = self._ctx.process_context.registry
            registry.put(parked_key(registry.lease, component), msgspec.json.encode(record))

    def wanted(self, component: str) -> bool:
        """Whether requests wait for a worker."""
        card = self._cards.get(component)
        return card is not None and any(one.model == card.name for one in self._waiting.values())

    def _wanted(self, key: str, value: bytes | None) -> None:
        if (found := decoded(key, value, WantedModel)) is None:
            self._waiting.pop(key, None)
        else:
            self._waiting[key] = found
            self._woken()
