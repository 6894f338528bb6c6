"""The processes of our graph's components on our node, as its daemon manages them."""

from collections.abc import Collection
from typing import TypeVar

import msgspec

from dynamod.discovery.link import LinkRegistry
from dynamod.message.control import FINISH, patience
from dynamod.message.pools import Pool

T = TypeVar("T", bound=msgspec.Struct)

ASK = 5.0
"""Seconds that the daemon has to answer."""


class Processes:
    """Asked of the daemon over our link. All raise UserError, DynamodError and TimeoutError."""

    def __init__(self, registry: LinkRegistry) -> None:
        self._registry = registry

    async def pool(self, component: str) -> Pool:
        """The processes of the component."""
        return msgspec.convert(await self._registry.ask("pool", {"component": component}, timeout=ASK), Pool)

    async def scale(
        self, component: str, replicas: int, *, leave: Collection[int] = (), finish: float = FINISH
    ) -> None:
        """Run so many; returns when the processes that leave have ended. `leave`: numbers that leave first.

        `finish`: seconds that their open streams get.
        """
        arguments = {"component": component, "replicas": replicas, "leave": tuple(leave), "timeout": finish}
        await self._registry.ask("scale", arguments, timeout=patience(finish))

    async def memo(self, component: str, kind: type[T]) -> T:
        """What the process before us has left about a component."""
        found = await self._registry.ask("keep", {"component": component}, timeout=ASK)
        return msgspec.convert(found or {}, kind)

    async def keep(self, component: str, memo: msgspec.Struct) -> None:
        """Leave that to the process after us."""
        await self._registry.ask("keep", {"component": component, "memo": msgspec.to_builtins(memo)}, timeout=ASK)

    async def switch(self, component: str, replicas: Collection[int], role: str, *, finish: float = FINISH) -> None:
        """Have these, by number, take a role while they run; returns when they have it."""
        arguments = {"component": component, "switch": tuple(replicas), "role": role, "timeout": finish}
        await self._registry.ask("switch", arguments, timeout=patience(finish))
