"""LoRA adapters that an engine loads and unloads while it runs: the rules that all such engines share."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dynamod.message.discovery import Adapter
from dynamod.message.errors import BadRequest, NotFound, UserError
from dynamod.message.worker import Generate

from .base import Engine
from .lora import digested


class AdapterStore(Protocol):
    """The memory in which an engine keeps adapters, by their digests."""

    def __contains__(self, digest: object) -> bool:
        """Whether the adapter with this digest is loaded, although the card may list it no more."""
        ...

    async def take(self, adapter: Adapter) -> None:
        """Load an adapter, unless an adapter with its digest is loaded. Another adapter of its name stays loaded.

        Raises UserError for an adapter that the engine cannot load.
        """

    async def leave(self, adapter: Adapter) -> None:
        """Free an adapter that the card has ceased to list, as soon as no request needs it."""


class AdapterManager:
    """Loads and unloads the adapters of an engine, and has its card list them."""

    def __init__(self, engine: Engine[Any], store: AdapterStore) -> None:
        self._engine, self._store = engine, store

    async def load(self, adapter: Adapter, *, inplace: bool) -> Adapter:
        """Load an adapter, and have the card list it. Returns the adapter with its digest.

        `inplace`: the adapter may take the place of another one of its name. The files of an adapter that comes with
        its digest are not read again while the engine has it, listed or not. Raises BadRequest for an adapter that
        the engine cannot load, and for a name that is taken; NotFound where there is no file.
        """
        listed = self._listed()
        before = listed.get(adapter.name)
        if before is not None and before.digest == adapter.digest:
            return before
        held = adapter.digest in self._store
        if not held and not await asyncio.to_thread(Path(adapter.path).exists):
            raise NotFound(f"no adapter found at {adapter.path}", param="lora_path", code="adapter_not_found")
        if adapter.name == self._engine.card().name:
            raise BadRequest(f"{adapter.name!r} is the name of the model", param="lora_name")
        try:
            found = adapter if held else await asyncio.to_thread(digested, adapter)
            replaces = before is not None and before.digest != found.digest
            if replaces and not inplace:
                raise BadRequest(f"the adapter {adapter.name!r} is loaded already", param="lora_name")
            await self._store.take(found)
        except UserError as error:
            raise BadRequest(error.line(), param="lora_path") from None
        self._list({**listed, found.name: found})
        if before is not None and replaces:
            await self._store.leave(before)
        return found

    async def unload(self, name: str) -> None:
        """Have the card list the adapter of this name no more; answers that have begun are finished.

        Raises NotFound for a name that the card does not list.
        """
        listed = self._listed()
        if name not in listed:
            raise not_loaded(name)
        unloaded = listed.pop(name)
        self._list(listed)
        await self._store.leave(unloaded)

    def require(self, request: Generate) -> None:
        """Raise NotFound for a request whose adapter is not loaded."""
        if request.adapter is not None and request.adapter.digest not in self._store:
            raise gone(request.adapter.name)

    def _listed(self) -> dict[str, Adapter]:
        return {one.name: one for one in self._engine.card().adapters}

    def _list(self, adapters: Mapping[str, Adapter]) -> None:
        self._engine.change_card(adapters=tuple(adapters.values()))


def gone(name: str) -> NotFound:
    """The error for a request whose adapter has been freed since the request was sent here."""
    return NotFound(f"the adapter {name!r} is not loaded here any more", param="model")


def not_loaded(name: str) -> NotFound:
    """The error for an adapter that a worker is to unload, and has not loaded."""
    return NotFound(f"the adapter {name!r} is not loaded", param="lora_name", code="adapter_not_found")
