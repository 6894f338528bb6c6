"""Models that requests may name: cards, tokenizers and parsers of what the registry advertises, or of what is kept."""

import logging
from collections.abc import Callable, Mapping

import msgspec

from dynamod.actor import Context
from dynamod.discovery.view import View, disagree
from dynamod.message.discovery import ModelCard
from dynamod.preprocess.model import Model
from dynamod.transport.base import Transport

from .askable import Announce, AskableModels
from .model_loader import ModelLoader
from .parsing import ModelParsers
from .parts import ProcessorParts

log = logging.getLogger("dynamod.frontend")


class ServedModels:
    """A model comes with its first worker, or with `keep`, and goes with its last.

    `node()`: the name of this node; models of workers on other nodes are fetched when they are not found here.
    `announce`: see `AskableModels`. `refused(name, why)` is called when the files of a model are of no use, and with an
    empty text when that is over. `changed(name, card)` is called when a model has been loaded, with None when it goes.

    `tokenizers`: of the models in `cards`, with their chat templates; None for a text engine, which has none.
    `parsers`: of the same models. `loading`: cards of models to come. `loader`: loads tokenizers.
    """

    def __init__(
        self,
        view: View,
        transport: Transport,
        node: Callable[[], str],
        parts: ProcessorParts,
        announce: Announce,
        refused: Callable[[str, str], None],
        changed: Announce,
    ) -> None:
        self._view, self._parts, self._tell = view, parts, changed
        self.loading: dict[str, ModelCard] = {}
        self.tokenizers: dict[str, Model | None] = {}
        self.parsers: dict[str, ModelParsers] = {}
        self._kept: dict[str, ModelCard] = {}  # of models that can be asked for without a worker
        self._cards: dict[str, ModelCard] = {}
        self._outdated = False  # other workers may be there than when the cards were read
        self.askable = AskableModels(
            view, lambda: self.cards, self._kept.__contains__, self._coming, self._parts, announce
        )
        self.loader = ModelLoader(view, transport, node, refused, self.askable.look)

    def follow(self, context: Context) -> None:
        """Take the models of the registry, from now on until the actor of `context` ends, which loads them."""
        self._context = context
        self._view.on_model(context.callback(self._changed))
        self.loader.early.follow(self._view, context, lambda name: name in self.tokenizers or name in self.loading)
        self._view.on_change(context.callback(self._outdate))
        self._view.on_change(context.callback(self.askable.look))
        for name, card in self._view.models().items():
            self._changed(name, card)

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

    @property
    def coming(self) -> dict[str, ModelCard]:
        """Of models that are being loaded, by name, without those whose files are of no use."""
        return {name: card for name, card in self.loading.items() if name not in self.failed}

    @property
    def failed(self) -> dict[str, str]:
        """Why the last attempt to load a model has failed, by the model's name."""
        return self.loader.failed

    def kept(self, name: str) -> ModelCard | None:
        """The card of a model that is advertised although it has no worker."""
        return self._kept.get(name)

    def keep(self, card: ModelCard) -> None:
        """Advertise the model although it has no worker. The card of a later worker may say more of the model.

        The adapters that its workers will have, too.
        """
        self._kept[card.name] = card
        if card.name not in self.cards and card.name not in self.loading:
            self._changed(card.name, card)
        if not card.parent:
            self._revise_kept()
        self.askable.look()

    def forget(self, name: str) -> None:
        """Advertise the model only while it has a worker."""
        below = self._kept.pop(name)
        if self._view.card(name) is None:
            self._changed(name, None)
        if not below.parent:
            self._revise_kept()
        self.askable.look()

    def revise(self) -> None:
        """New workers of a model would publish another card, or a part starts workers or no more."""
        self._revise_kept()
        self.askable.look()

    def _revise_kept(self) -> None:
        """The adapters of models that are kept are kept, and no others."""
        below = [card for card in self._kept.values() if not card.parent]
        wanted = {one.name: one for card in below for one in self._parts.starting_card(card).each()[1:]}
        for name in [name for name, card in self._kept.items() if card.parent and name not in wanted]:
            self.forget(name)
        for name, card in wanted.items():
            there = self._kept.get(name) or self.cards.get(name) or card
            if there.parent == card.parent and self._kept.get(name) != card:  # else another model has the name
                self.keep(card)

    def _outdate(self) -> None:
        self._outdated = True

    def _coming(self, name: str) -> ModelCard | None:
        """The card that is being loaded, unless its files are of no use."""
        return self.coming.get(name)

    def _changed(self, name: str, card: ModelCard | None) -> None:
        self.loading.pop(name, None)
        self.loader.clear(name)
        if name in self._kept:
            here = self.cards.get(name)
            if card is None and here is not None:
                return
            card = card or self._kept[name]
            if here is not None and not disagree(card, here):
                self._ready(name, self.tokenizers[name], card)  # the same tokenizer: a worker has come back
                return
        if card is None:
            self.tokenizers.pop(name, None)
            self.parsers.pop(name, None)
            self._cards.pop(name, None)
            self._tell(name, None)
            self.askable.look()
        elif card.parent:
            self.loading[name] = card
            self._take_adapter(name, card)
        elif card.kind == "text":
            self._ready(name, None, card)
        else:
            self.loading[name] = card
            self._context.task(self._load(name, card), f"load {name}")

    def _take_adapter(self, name: str, card: ModelCard) -> None:
        """An adapter can be asked for when the model below it can: it has the same tokenizer."""
        below = self.cards.get(card.parent)
        if below is not None and (below.kind, below.mdc_sum) == (card.kind, card.mdc_sum):
            del self.loading[name]
            self._ready(name, self.tokenizers[card.parent], card)

    async def _load(self, name: str, card: ModelCard) -> None:
        def wanted() -> bool:
            return self.loading.get(name) is card  # else it is gone, or another model has taken the name

        model = await self.loader.load(card, wanted, self._context.random)
        if model is not None and wanted():
            del self.loading[name]
            self._ready(name, model, card)
            await self.loader.hasten(name, model, lambda: self.tokenizers.get(name) is model)

    def _ready(self, name: str, tokenizer: Model | None, card: ModelCard) -> None:
        self.loader.clear(name)
        self.tokenizers[name] = tokenizer
        self.parsers[name] = parsers = ModelParsers(card, tokenizer)
        self._cards[name] = card = parsers.card
        self._outdate()
        log.info(
            "model %s: parser of tool calls %s, of reasoning %s", name, card.tool_call_parser, card.reasoning_parser
        )
        self._tell(name, card)
        self.askable.look()
        for other, waiting in [one for one in self.loading.items() if one[1].parent == name]:
            self._take_adapter(other, waiting)
