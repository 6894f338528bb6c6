"""The live instances and models, as an ingress sees them: a view kept by watching the registry."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import msgspec

from dynamod.message.discovery import Capabilities, Instance, ModelCard

from .base import Registry
from .keys import (
    CARDS,
    COMING,
    EXITED,
    INSTANCES,
    QUARANTINED,
    SLOW,
    Address,
    card_key,
    instance_key,
    lease_of,
    place_of,
)
from .records import decoded

log = logging.getLogger("dynamod.registry")

_Group = tuple[str, tuple[object, ...] | None, str | None]
"""Model, what its cards must have in common, pool."""

ModelWatcher = Callable[[str, ModelCard | None], None]

GROUPS = 64
"""Answers of `View.served` that are kept up to date; more are made anew."""


def _looked_at(card: ModelCard) -> tuple[object, ...]:
    """What `disagree` looks at."""
    return card.name, card.kind, card.mdc_sum, card.types, card.capabilities.pairs, card.parent, card.salt


def disagree(one: ModelCard, other: ModelCard) -> bool:
    """Whether workers of one model name cannot take the same requests: what they are sent, or its tokens, differ."""
    if one.name != other.name:
        return False
    if one.types and other.types and one.inputs != other.inputs:
        return True
    return (one.kind, one.mdc_sum, one.parent, one.salt) != (other.kind, other.mdc_sum, other.parent, other.salt)


UNRESPONSIVE = "its process was unresponsive"
"""Why an instance has gone whose process does not respond: see `View.cause`."""


class Serving:
    """The instances of a model: `instances` is the same tuple until that changes, so that readers can tell."""

    def __init__(self) -> None:
        self._places: dict[str, Instance] = {}
        self._instances: tuple[Instance, ...] | None = None
        self._by_id: dict[int, Instance] | None = None

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The ready ones."""
        if self._instances is None:
            self._instances = tuple(self._places.values())
        return self._instances

    def get(self, instance: int) -> Instance | None:
        """The one with that id."""
        if self._by_id is None:
            self._by_id = {one.instance_id: one for one in self.instances}
        return self._by_id.get(instance)

    def put(self, place: str, instance: Instance | None) -> None:
        """The instances of the model at a place of the registry now; None: no instance."""
        if self._places.get(place) is instance:
            return
        if instance is None:
            del self._places[place]
        else:
            self._places[place] = instance
        self._instances = self._by_id = None


@dataclass(slots=True)
class _Served:
    """Answers of `View.served`: by name, what is looked at of a card, and pool; `by_card` by the card itself.

    A card in `by_card` is kept there, so that no other card has its id.
    """

    by_look: dict[_Group, tuple[ModelCard | None, Serving]] = field(default_factory=dict)
    by_card: dict[tuple[str, int, str | None], tuple[ModelCard | None, Serving]] = field(default_factory=dict)


class View:
    """Instances by endpoint path and id, cards by model name. A model is there while one of its instances is.

    An adapter that a card lists is a model with a card of its own.

    `only`: only instances at this address. A static worker publishes no card: `offer` is for a caller that knows
    what it serves.
    """

    def __init__(self, registry: Registry, only: Address | None = None) -> None:
        self.only, self._registry = only, registry
        self._instances: dict[str, dict[int, Instance]] = {}
        self._by_key: dict[str, Instance] = {}
        self._cards: dict[str, ModelCard] = {}  # by registry place: namespace/component/endpoint/id
        self._present: dict[str, ModelCard] = {}  # those of them whose instance is there
        self._models: dict[str, dict[str, ModelCard]] = {}
        self._on_model: list[ModelWatcher] = []
        self._on_change: list[Callable[[], None]] = []
        # By lease: why its process is stuck, is slow, or crashed (empty: it was ended on purpose).
        self._quarantined: dict[int, str] = {}
        self._slow: dict[int, str] = {}
        self._exits: dict[int, str] = {}
        self._served = _Served()
        self._unable: dict[tuple[str, frozenset[str]], frozenset[int]] = {}  # until something changes, as the next
        self._capabilities: dict[tuple[object, ...], Capabilities | None] = {}  # by what `disagree` looks at
        registry.watch(QUARANTINED, partial(self._reason_changed, self._quarantined, self._revise_lease))
        registry.watch(SLOW, partial(self._reason_changed, self._slow, lambda _lease: self._changed()))
        registry.watch(EXITED, partial(self._reason_changed, self._exits, self._revise_lease))
        registry.watch(INSTANCES + self._within, self._instance_changed)
        registry.watch(CARDS + self._within, self._card_changed)

    def on_model(self, watcher: ModelWatcher) -> None:
        """Call `watcher(name, card)` when a model's first instance comes, `watcher(name, None)` when its last goes.

        Also with another card when the files of the name have changed, and no instance with the old ones is left.
        """
        self._on_model.append(watcher)

    def on_coming(self, watcher: ModelWatcher) -> None:
        """Call `watcher(place, card)` when a worker of this node loads a model, with None instead when that is over.

        The card at a place may change until the worker publishes it.
        """

        def changed(key: str, value: bytes | None) -> None:
            watcher(key.removeprefix(COMING), decoded(key, value, ModelCard))

        self._registry.watch(COMING + self._within, changed)

    @property
    def _within(self) -> str:
        return f"{place_of(self.only)}/" if self.only is not None else ""

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` when any instance or card has come, changed or gone."""
        self._on_change.append(watcher)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds, looking at it at each change."""
        changed = asyncio.Event()
        self._on_change.append(changed.set)
        try:
            while not condition():
                changed.clear()
                await changed.wait()
        finally:
            self._on_change.remove(changed.set)

    def _changed(self) -> None:
        for watcher in list(self._on_change):
            watcher()

    def instances(self, path: str) -> Mapping[int, Instance]:
        """Live instances of `namespace.component.endpoint`, by id."""
        return MappingProxyType(self._instances.get(path, {}))

    def all_instances(self) -> list[Instance]:
        """All live instances, by key."""
        return [self._by_key[key] for key in sorted(self._by_key)]

    def models(self) -> dict[str, ModelCard]:
        """One card per model that has a live instance for clients."""
        found = {name: self.card(name) for name in sorted(self._models)}
        return {name: card for name, card in found.items() if card is not None}

    def card(self, name: str) -> ModelCard | None:
        """The card of a model, None when no instance serves it to clients."""
        return next((card for card in self._models.get(name, {}).values() if card.types), None)

    def card_of(self, name: str, instance: Instance) -> ModelCard | None:
        """What an instance says of a model; None when it does not serve it."""
        return self._models.get(name, {}).get(card_key(instance).removeprefix(CARDS))

    def serving(self, name: str, like: ModelCard | None = None) -> list[Instance]:
        """Ready instances that serve the model, without quarantined ones; only those whose card agrees with `like`."""
        return list(self.served(name, like).instances)

    def served(self, name: str, like: ModelCard | None = None, pool: str | None = None) -> Serving:
        """`serving`, kept up to date while things change: with thousands of instances it costs nothing to ask again.

        `pool`: only its instances. To be asked for each time: an answer that is not asked for may be forgotten.
        """
        asked, by_card = (name, id(like), pool), self._served.by_card
        known = by_card.get(asked)
        if known is None:
            group = self._group(name, like, pool)
            if len(by_card) >= GROUPS:
                by_card.clear()
            known = by_card[asked] = (like, group)
        return known[1]

    def _group(self, name: str, like: ModelCard | None, pool: str | None) -> Serving:
        key, by_look = (name, None if like is None else _looked_at(like), pool), self._served.by_look
        found = by_look.get(key)
        if found is not None:
            return found[1]
        if len(by_look) >= GROUPS:
            by_look.clear()
            self._served.by_card.clear()
        group = Serving()
        by_look[key] = (like, group)
        for place in self._models.get(name, ()):
            group.put(place, self._serves(place, name, like, pool))
        return group

    def published(self, instance: Instance) -> ModelCard | None:
        """The card that an instance published; None for one that serves no model."""
        return self._cards.get(card_key(instance).removeprefix(CARDS))

    def routable(self, card: ModelCard, pool: str = "") -> bool:
        """Whether a ready instance of the pool takes requests that are made with this card."""
        return any(self._serves(place, card.name, card, pool) for place in self._models.get(card.name, ()))

    def routes(self, instance: Instance, card: ModelCard) -> bool:
        """Whether requests that are made with this card go to the instance, in whatever pool it is."""
        return self._serves(card_key(instance).removeprefix(CARDS), card.name, card, None) is not None

    def capabilities(self, card: ModelCard) -> Capabilities | None:
        """Capabilities of the model's workers whose cards agree with this one; None: no instance serves the model."""
        key = _looked_at(card)
        if key not in self._capabilities:
            cards = self._models.get(card.name, {}).values()
            found = [one.capabilities for one in cards if one.types and not disagree(one, card)]
            self._capabilities[key] = Capabilities.shared(found) if found else None
        return self._capabilities[key]

    def unable(self, name: str, words: Collection[str]) -> frozenset[int]:
        """Instances of a model whose cards do not say that they keep to forms that need these words."""
        key = (name, frozenset(words))
        if key not in self._unable:
            cards = self._models.get(name, {})
            lacking = [place for place, card in cards.items() if not card.capabilities.keeps(words)]
            found = [self._by_key.get(INSTANCES + place) for place in lacking]
            self._unable[key] = frozenset(one.instance_id for one in found if one is not None)
        return self._unable[key]

    def _serves(self, place: str, name: str, like: ModelCard | None, pool: str | None) -> Instance | None:
        card = self._models.get(name, {}).get(place)
        if card is None or (like is not None and disagree(card, like)):
            return None
        instance = self._by_key.get(INSTANCES + place)
        if instance is None or instance.state != "ready" or self.quarantined(instance):
            return None
        if instance.instance_id in self._exits:
            return None  # its keys may be known longer than its end: a registry that lost its data deletes nothing
        return instance if pool is None or instance.pool == pool else None

    def _revise(self, place: str) -> None:
        """Something at a place of the registry has changed."""
        self._unable.clear()
        self._capabilities.clear()
        for (name, _, pool), (like, group) in self._served.by_look.items():
            group.put(place, self._serves(place, name, like, pool))

    def quarantined(self, instance: Instance) -> bool:
        """Whether the daemon of the instance's process does not hear from it."""
        return instance.instance_id in self._quarantined

    @property
    def slow(self) -> Mapping[int, str]:
        """Instances, by id, that make progress but far slower than usual, and what their daemons say of them."""
        return self._slow

    def gone(self, instance: Instance) -> bool:
        """Whether nothing should be sent to an instance any more."""
        here = instance_key(instance) in self._by_key and instance.instance_id not in self._exits
        return not here or self.quarantined(instance)

    async def cause(self, instance: Instance, timeout: float) -> str:
        """Why an instance's process crashed or hung, as its daemon says.

        Empty: it was ended on purpose, or the daemon has said nothing within `timeout` seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.until(lambda: instance.instance_id in self._exits or self.quarantined(instance))
        return UNRESPONSIVE if self.quarantined(instance) else self._exits.get(instance.instance_id, "")

    def _reason_changed(
        self, reasons: dict[int, str], changed: Callable[[int], None], key: str, value: bytes | None
    ) -> None:
        """A key about the process of a lease has come, changed or gone. `reasons`: what such keys say, by lease."""
        lease = lease_of(key)
        if lease is None:
            return
        if value is None:
            reasons.pop(lease, None)
        else:
            reasons[lease] = value.decode(errors="replace")
        changed(lease)

    def _revise_lease(self, lease: int) -> None:
        for where, instance in self._by_key.items():
            if instance.instance_id == lease:
                self._revise(where.removeprefix(INSTANCES))
        self._changed()

    def offer(self, instance: Instance, card: ModelCard | None) -> None:
        """Take a model as if the instance had published it; None takes it back."""
        self._card_changed(card_key(instance), None if card is None else msgspec.json.encode(card))

    def place(self, instance: Instance, here: bool) -> None:
        """Take an instance that stands in no registry, or forget it."""
        self._instance_changed(instance_key(instance), msgspec.json.encode(instance) if here else None)

    def _instance_changed(self, key: str, value: bytes | None) -> None:
        old, new = self._by_key.pop(key, None), decoded(key, value, Instance)
        if new is not None:
            self._by_key[key] = new
            self._instances.setdefault(new.path, {})[new.instance_id] = new
        if old is not None and (new is None or (new.path, new.instance_id) != (old.path, old.instance_id)):
            self._instances[old.path].pop(old.instance_id, None)
            if not self._instances[old.path]:
                del self._instances[old.path]
        self._changed_at(key.removeprefix(INSTANCES))

    def _card_changed(self, key: str, value: bytes | None) -> None:
        place = key.removeprefix(CARDS)
        new = decoded(key, value, ModelCard)
        if new is None:
            self._cards.pop(place, None)
        else:
            self._cards[place] = new
        self._changed_at(place)

    def _changed_at(self, place: str) -> None:
        """The instance or the card at a place has changed. Models are there while the place has both.

        The order does not matter: a watcher that is told of a model can ask its instance.
        """
        old, new = self._present.get(place), self._cards.get(place) if INSTANCES + place in self._by_key else None
        if new is old:
            self._revise(place)
        else:
            self._models_changed(place, old, new)
        self._changed()

    def _models_changed(self, place: str, old: ModelCard | None, new: ModelCard | None) -> None:
        before = self.models()
        for card in old.each() if old is not None else ():
            self._models.get(card.name, {}).pop(place, None)
        self._present.pop(place, None)
        if new is not None:
            self._present[place] = new
            for card in new.each():
                self._models.setdefault(card.name, {})[place] = card
        self._revise(place)
        after = self.models()
        for name, card in after.items():
            if name not in before or disagree(card, before[name]):
                for watcher in self._on_model:
                    watcher(name, card)
        for name in before.keys() - after.keys():
            if not self._models.get(name):
                self._models.pop(name, None)
            for watcher in self._on_model:
                watcher(name, None)
