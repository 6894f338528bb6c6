"""What an ingress process knows of adapters: published for others, and left to the one that is started next."""

import asyncio
import logging

import msgspec

from dynamod.discovery.link import LinkRegistry
from dynamod.message.errors import DynamodError
from dynamod.runtime.components.processes import Processes
from dynamod.transport.base import Spawn

from .changes import ADAPTERS, AdapterChanges, AdapterRecord, adapters_key

log = logging.getLogger("dynamod.frontend")


class SharedAdapters:
    """After each change all that is known stands under our lease, and the daemon has it for our `component`."""

    def __init__(self, registry: LinkRegistry, changes: AdapterChanges, component: str) -> None:
        self._registry, self._changes, self._component = registry, changes, component
        self._processes = Processes(registry)
        self._left = AdapterRecord()  # to the daemon
        self._lock = asyncio.Lock()

    async def join(self, spawn: Spawn) -> None:
        """Learn what the process before us has left and what others know. The lease must have been granted."""
        self._changes.on_change(lambda: self._share(spawn))
        try:
            self._changes.merge(await self._processes.memo(self._component, AdapterRecord))
        except (DynamodError, TimeoutError) as error:
            log.warning("the daemon does not say which adapters were loaded: %s", error or "no answer")
        self._registry.watch(ADAPTERS, self._changes.record)

    def _share(self, spawn: Spawn) -> None:
        self._registry.put(adapters_key(self._registry.lease), msgspec.json.encode(self._changes.all()))
        spawn(self.keep(), "adapters for the next process")

    async def keep(self) -> None:
        """Have the daemon know all changes."""
        async with self._lock:
            if (known := self._changes.all()) == self._left:
                return
            try:
                await self._processes.keep(self._component, known)
                self._left = known
            except (DynamodError, TimeoutError) as error:
                log.warning("the daemon does not keep which adapters are loaded: %s", error or "no answer")
