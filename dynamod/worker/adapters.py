"""Adapters that clients have loaded and unloaded: what a worker does about them that has not been asked itself."""

import logging
from collections.abc import Collection
from typing import Any

from dynamod.discovery.adapters import AdapterChanges
from dynamod.engine.base import Engine
from dynamod.message.discovery import AdapterChange
from dynamod.message.errors import RequestError

log = logging.getLogger("dynamod.worker")


class FollowedAdapters:
    """Each change is done once. `configured`: names of adapters with which the worker is started."""

    def __init__(self, engine: Engine[Any], changes: AdapterChanges, configured: Collection[str]) -> None:
        self._engine, self._changes, self._configured = engine, changes, configured
        self._done: dict[str, float] = {}  # by name, when the change was

    async def catch_up(self) -> bool:
        """Have the engine know what is new; returns whether its card lists others now. One change at a time."""
        before = self._engine.card().adapters
        while (change := self._next()) is not None:
            self._done[change.adapter.name] = change.at
            try:
                await self._do(change)
            except RequestError as error:
                what = "load" if change.loaded else "unload"
                log.warning("cannot %s the adapter %s: %s", what, change.adapter.name, error)
        return self._engine.card().adapters != before

    def _next(self) -> AdapterChange | None:
        found = self._changes.of(self._engine.card().name)
        return next((one for one in found if one.at > self._done.get(one.adapter.name, float("-inf"))), None)

    async def _do(self, change: AdapterChange) -> None:
        """Raises RequestError."""
        wanted = change.adapter
        if change.loaded:
            found = await self._engine.load_adapter(wanted, inplace=True)
            if wanted.digest and found.digest != wanted.digest:
                log.warning("the adapter %s has other files here than where it was loaded first", wanted.name)
        elif wanted.name not in self._configured and any(
            one.name == wanted.name for one in self._engine.card().adapters
        ):
            await self._engine.unload_adapter(wanted.name)
