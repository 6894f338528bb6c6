"""The LoRA adapters of a llama.cpp worker while it runs: loaded and freed between the steps of its thread."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from dynamod.message.discovery import Adapter
from dynamod.message.errors import UserError

from ..base import Spawn
from ..lora import LATE
from .lora import check
from .model import Model
from .steps import Steps


class LlamaCppAdapters:
    """An `AdapterStore`. `path`: the GGUF file of the model. `loaded`: the adapters that the model was loaded with.

    `model()`: None once the engine is closed. `listed()`: the adapters on the engine's card now.
    """

    def __init__(
        self,
        steps: Steps,
        path: Path,
        loaded: Iterable[Adapter],
        *,
        model: Callable[[], Model | None],
        listed: Callable[[], Iterable[Adapter]],
        spawn: Spawn,
    ) -> None:
        self._steps, self._path, self._spawn = steps, path, spawn
        self._model, self._listed = model, listed
        self._kept = {one.digest: True for one in loaded}  # loaded ones, False: to be freed when no request needs it

    def __contains__(self, digest: object) -> bool:
        return digest in self._kept

    async def take(self, adapter: Adapter) -> None:
        """Load an adapter between two steps. Raises UserError."""
        model = self._model()
        assert model is not None
        if adapter.digest not in self:
            await asyncio.to_thread(check, (adapter,), self._path)
        before = self._kept.get(adapter.digest)
        self._kept[adapter.digest] = self._steps.scheduler.adapters = True  # it is not freed meanwhile
        try:
            await asyncio.wrap_future(self._steps.thread.submit(model.adapters.load, adapter))
        except UserError:
            if before is None:
                del self._kept[adapter.digest]
            raise

    async def leave(self, adapter: Adapter) -> None:
        """Free an adapter when no request needs it, requests that are on their way included."""
        if all(one.digest != adapter.digest for one in self._listed()):
            self._kept[adapter.digest] = False
            self._spawn(self._drop(adapter.digest), f"unload {adapter.name}")

    async def _drop(self, digest: str) -> None:
        scheduler = self._steps.scheduler
        await asyncio.sleep(LATE)
        while scheduler.has(digest):  # noqa: ASYNC110 - it knows no waiters
            await asyncio.sleep(LATE)
        model = self._model()
        if self._kept.get(digest) is not False or model is None:
            return  # loaded again, or freed already
        del self._kept[digest]
        scheduler.forget(digest)
        await asyncio.wrap_future(self._steps.thread.submit(model.drop_adapter, digest))
