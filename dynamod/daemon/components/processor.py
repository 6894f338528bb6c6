"""The processor component: preprocessing, routing and migration in the ingress process."""

import asyncio
import logging
from collections.abc import Iterator

import msgspec

from dynamod.actor import Reason
from dynamod.frontend import routing
from dynamod.frontend.dispatch import Dispatch
from dynamod.frontend.processor import Processor
from dynamod.frontend.settings import metrics_prefix
from dynamod.message.registry import ModelCard
from dynamod.migration.flight import Limits
from dynamod.router.settings import settings_of

from ..site import Site
from .served import SERVED, ServedModel

log = logging.getLogger("dynamod.frontend")

CATCH_UP = 5.0
"""Seconds that the front door waits for models that are there already, after a restart for example."""

ENDPOINTS = {"chat": "chat/completions", "completions": "completions"}


class ProcessorComponent(Processor):
    """Serves the models of the whole registry, or only those at the address that `endpoint` names."""

    def __init__(self, site: Site) -> None:
        self._site = site
        config = {key.replace("-", "_"): value for key, value in site.config.items()}
        defaults = Limits()
        limits = Limits(
            queue=config.get("queue_timeout", defaults.queue),
            first=config.get("first_token_timeout", defaults.first),
            gap=config.get("token_gap_timeout", defaults.gap),
            total=config.get("request_timeout", defaults.total),
        )
        super().__init__(
            site.around.view,
            site.around.mail,
            routing=settings_of(config),
            limits=limits,
            migration_limit=config.get("migration_limit"),
            announce=self._announced,
        )

    async def started(self) -> None:
        """Wait for the lease, then until the models that are there now can be asked for: the door opens after us."""
        await self._site.around.registry.leased(timeout=60)
        await super().started()
        try:
            async with asyncio.timeout(CATCH_UP):
                await self._caught_up()
        except TimeoutError:
            log.warning("not all models could be loaded within %g s; going on without", CATCH_UP)

    async def _caught_up(self) -> None:
        """What we put comes back behind the snapshots that were asked for before."""
        registry, view = self._site.around.registry, self._site.around.view
        key, back = f"v1/caught-up/{registry.lease:x}", asyncio.Event()
        registry.put(key, b"")
        registry.watch(key, lambda _key, _value: back.set())
        await back.wait()
        registry.delete(key)
        while not view.models().keys() <= self.cards.keys():  # noqa: ASYNC110 - loaded in threads
            await asyncio.sleep(0.005)

    def metric_rows(self) -> Iterator[routing.Row]:
        """What metrics show of the routers."""
        return routing.rows(self.dispatch, self._view, metrics_prefix(), self._migration_limit)

    async def stopping(self, reason: Reason) -> None:
        """Let go of the workers' feeds; the registry drops what stood under the lease."""
        dispatch: Dispatch | None = getattr(self, "dispatch", None)  # there from `started` on
        if dispatch is not None:
            dispatch.close()

    def _announced(self, name: str, card: ModelCard | None) -> None:
        registry = self._site.around.registry
        for kind, endpoint in ENDPOINTS.items():
            key = f"{SERVED}{kind}/{name}/{registry.lease:x}"
            if card is None:
                registry.delete(key)
            elif kind in card.types:
                served = ServedModel(kind, name, self._site.namespace, self._site.component, endpoint)
                registry.put(key, msgspec.json.encode(served))
