"""Tokenizers and templates of models that workers of this node are loading: what takes time is read meanwhile."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from dynamod.actor import Context
from dynamod.discovery.view import View
from dynamod.message.discovery import ModelCard
from dynamod.preprocess.model import Model

log = logging.getLogger("dynamod.frontend")

MOST = 8
"""Models that are read before a worker serves them. Others are read when a worker serves them."""
KEPT = 10.0
"""Seconds for which a model is kept after its worker has been published, or has ended."""


class _Files(NamedTuple):
    """What a model is read from. Equal cards of two workers need one reading."""

    path: str
    mdc_sum: str


def read_model(card: ModelCard) -> Model:
    """Read what the card names. Blocks. Raises UserError, OSError."""
    return Model.load(card, use_fast_backend=False, apart=True)


class EarlyModels:
    """Models by their files, from `follow` on. An error is told when the model is read again for its worker."""

    def __init__(self) -> None:
        self._reading: dict[_Files, asyncio.Task[Model | None]] = {}
        self._places: dict[str, _Files] = {}  # of workers that are loading, by their places in the registry

    def follow(self, view: View, context: Context, served: Callable[[str], bool]) -> None:
        """Read the models to come, until the actor of `context` ends. `served(name)`: a model is read already."""
        self._context, self._served = context, served
        view.on_coming(context.callback(self._changed))

    async def take(self, card: ModelCard) -> Model | None:
        """The model of a card whose files are those of this machine; None when it has not been read."""
        reading = self._reading.pop(_files(card), None)
        model = await reading if reading is not None else None
        return model and Model(card, model.tokenizer, model.templates)

    def _changed(self, place: str, card: ModelCard | None) -> None:
        before = self._places.pop(place, None)
        if card is not None and not self._served(card.name):
            self._places[place] = files = _files(card)
            if files not in self._reading and len(self._reading) < MOST:
                self._reading[files] = self._context.task(self._read(card), f"read {card.name}")
        if before is not None:
            asyncio.get_running_loop().call_later(KEPT, self._forget, before)

    def _forget(self, files: _Files) -> None:
        if files not in self._places.values():
            self._reading.pop(files, None)

    async def _read(self, card: ModelCard) -> Model | None:
        try:
            return await asyncio.to_thread(read_model, card)
        except Exception as error:
            log.debug("the files of model %s cannot be read yet: %s", card.name, error)
            return None


def _files(card: ModelCard) -> _Files:
    return _Files(card.config_path or card.path, card.mdc_sum)
