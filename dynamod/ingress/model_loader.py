"""Tokenizer and chat template of a model that workers serve: found, read in a thread, tried again after a failure."""

import asyncio
import logging
import os
import random
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from dynamod.actor import Backoff
from dynamod.discovery.view import View
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.preprocess.model import Model
from dynamod.transport.base import Transport

from .early import EarlyModels, read_model
from .memory import trim_memory

if TYPE_CHECKING:
    from .model_files import ModelFiles

log = logging.getLogger("dynamod.frontend")

RELOAD = Backoff(initial=0.5, maximum=30.0)
"""Between attempts to load a model that could not be loaded."""

HASTEN_AFTER = 1.0
"""Seconds for which a model is served before its faster tokenizer is loaded: the first answers have the processor."""


class ModelLoader:
    """`node()`, `refused(name, why)`: see `ServedModels`. `look()` is called when `failed` has another text.

    `failed`: why the last attempt to load a model has failed, by the model's name. `early`: models to come.
    """

    def __init__(
        self,
        view: View,
        transport: Transport,
        node: Callable[[], str],
        refused: Callable[[str, str], None],
        look: Callable[[], None],
    ) -> None:
        self._view, self._transport, self._node = view, transport, node
        self._refused, self._look = refused, look
        self._files: ModelFiles | None = None
        self.failed: dict[str, str] = {}
        self.early = EarlyModels()

    async def load(self, card: ModelCard, wanted: Callable[[], bool], random: random.Random) -> Model | None:
        """Load a model, again and again until it is loaded: what is missing now may come. None: it is not wanted."""
        for attempt in count(1):
            try:
                here = await self._files_of(card, wanted)
                if here is None:
                    return None
                return await self.early.take(here) or await asyncio.to_thread(read_model, here)
            except Exception as error:
                if wanted():
                    self._tell(card.name, error)
            await asyncio.sleep(RELOAD.delay(attempt, random))
            if not wanted():
                break
        return None

    def _tell(self, name: str, error: Exception) -> None:
        expected = isinstance(error, UserError)
        why = error.line() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if self.failed.get(name) != why:  # the same failure is logged once
            self.failed[name] = why
            self._look()
            if expected:
                self._refused(name, why)
            log.error("cannot serve model %s: %s", name, why, exc_info=None if expected else error)

    async def hasten(self, name: str, model: Model, wanted: Callable[[], bool]) -> None:
        """Take the faster tokenizer, which needs more time to load, if the model is wanted after `HASTEN_AFTER`."""
        await asyncio.sleep(HASTEN_AFTER)
        if not wanted():
            return
        try:
            await asyncio.to_thread(model.tokenizer.use_fast_backend)
            await asyncio.to_thread(trim_memory)  # loading took several times what is kept
        except Exception:  # it is served all the same
            log.exception("the tokenizer of model %s stays the slower one", name)

    async def _files_of(self, card: ModelCard, wanted: Callable[[], bool]) -> ModelCard | None:
        """The card with paths that can be read here; None when it is not wanted any more."""
        nodes = {instance.node for instance in self._view.serving(card.name, card)}
        meant_for_us = nodes == {self._node()}  # else it may be the path of a worker elsewhere
        if meant_for_us and await asyncio.to_thread(os.path.exists, card.config_path or card.path):
            return card
        if self._files is None:
            from .model_files import ModelFiles  # a node that is alone does not need it, and starts sooner

            self._files = ModelFiles(self._transport, self._node)
        return await self._files.find(card, lambda: self._view.serving(card.name, card), wanted)

    def clear(self, name: str) -> None:
        """What was wrong with a model is over."""
        if self.failed.pop(name, None) is not None:
            self._refused(name, "")
