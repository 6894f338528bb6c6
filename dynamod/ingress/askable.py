"""Which models can be asked at this ingress now: one answer for `/v1/models`, `/health` and the commands of the daemon.

A model can be asked when its card is loaded here and a request would be placed: a ready instance serves it, or a worker
is started when a request asks. When the workers of a model come back with a changed card, the ingress loads that card;
requests wait for it, so the model counts as one that can be asked.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dynamod.discovery.view import View
from dynamod.extension.installed import helpers_of
from dynamod.message.discovery import LOAD_METRICS, ModelCard

from .parts import ProcessorParts

Announce = Callable[[str, ModelCard | None], None]


class AskableModels:
    """`cards()`: of the models that are loaded here, by name. `kept(name)`: requests for the model wait for a worker.
    `coming(name)`: the card that takes the place of the loaded one soon; None when none does.

    `announce(name, card)` is called when a model can be asked from now on, and with None when it no longer can.
    """

    def __init__(
        self,
        view: View,
        cards: Callable[[], Mapping[str, ModelCard]],
        kept: Callable[[str], bool],
        coming: Callable[[str], ModelCard | None],
        parts: ProcessorParts,
        announce: Announce,
    ) -> None:
        self._view, self._cards, self._kept, self._coming = view, cards, kept, coming
        self._parts, self._announce = parts, announce
        self._announced: dict[str, tuple[str, ...]] = {}  # types, by model

    def models(self) -> dict[str, ModelCard]:
        """Models that can be asked now, by name."""
        cards = self._cards()
        return {name: card for name, card in cards.items() if self._askable(card, cards)}

    def look(self) -> None:
        """Announce what has changed since the last look."""
        now = self.models()
        for name in [name for name in self._announced if name not in now]:
            del self._announced[name]
            self._announce(name, None)
        for name, card in now.items():
            if self._announced.get(name) != card.types:
                self._announced[name] = card.types
                self._announce(name, card)

    def health(self) -> Mapping[str, Any]:
        """`endpoints` (dyn://) of models that can be asked now; `instances` (JSON-like rows) that requests go to."""
        now, rows = self.models(), list[dict[str, Any]]()
        places = self._parts.places(now)
        for instance in self._view.all_instances():
            card = self._view.published(instance)
            if instance.endpoint == LOAD_METRICS or (card is not None and not self._view.routes(instance, card)):
                continue
            if card is not None and card.name not in now:
                continue
            if card is not None and card.types:
                places.add(f"dyn://{instance.path}")
            row = msgspec.to_builtins(instance)
            del row["transport"]  # the addresses of sockets are for those inside
            rows.append(row)
        return {"endpoints": sorted(places), "instances": rows}

    def _askable(self, card: ModelCard, cards: Mapping[str, ModelCard]) -> bool:
        base = cards.get(card.base)
        if base is None:
            return False
        return self._served(card, base) or (self._kept(card.base) and self._parts.can_start(card.base))

    def _served(self, card: ModelCard, base: ModelCard) -> bool:
        if not self._view.routable(card):
            card, base = self._coming(card.name) or card, self._coming(base.name) or base
        if not self._view.routable(card):
            return False
        return all(self._view.routable(base, role) for role in helpers_of(base.capabilities))
