"""Workers whose blocks could not be read because no connection came about: no reader waits again for a while."""

import asyncio
from collections.abc import Mapping

from .transfer.base import TransferError


class UnreachableSources:
    """By their addresses, for `seconds` each. A worker that is started again has others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[frozenset[tuple[str, str]], float] = {}

    def check(self, addresses: Mapping[str, str]) -> None:
        """Raises TransferError (unreachable) for workers that were not reached a short time ago."""
        if self._until.get(frozenset(addresses.items()), 0.0) > asyncio.get_running_loop().time():
            raise TransferError("unreachable", f"it was not reached within the last {self._seconds:g} s")

    def add(self, addresses: Mapping[str, str]) -> None:
        """They were not reached now."""
        now = asyncio.get_running_loop().time()
        self._until = {one: until for one, until in self._until.items() if until > now}
        if addresses:
            self._until[frozenset(addresses.items())] = now + self._seconds
