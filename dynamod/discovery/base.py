"""What every registry offers to processes."""

from collections.abc import Callable
from typing import Protocol

Watcher = Callable[[str, bytes | None], None]
"""Told of each key under the watched prefix: what stands there at first, then every change; None means deleted."""


class Registry(Protocol):
    """Keys with values that live as long as the lease of the process that put them.

    A registry that cannot be reached loses nothing: what was put is put again, watchers keep the last known view.
    """

    @property
    def lease(self) -> int:
        """The id of this process's lease, 0 before the first contact; instance ids are lease ids."""
        ...

    async def leased(self, timeout: float) -> int:
        """Wait for the lease. Raises TimeoutError."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Store a value under this process's lease; kept until `delete` or the end of the process."""

    def delete(self, key: str) -> None:
        """Remove a key of this process."""

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call `watcher` for every key under `prefix`, now and on each change."""
