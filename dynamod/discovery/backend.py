"""A store of all nodes other than etcd, as a feature brings it (`extension.feature.Feature.discovery`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dynamod.actor import Actor

    from .memory import MemoryRegistry


class Bridge(Protocol):
    """The actor that repeats what this node holds in the store, and puts there what others hold into the registry."""

    def inspection(self) -> Mapping[str, Any]:
        """`endpoint`, `connected`, `last_error`, and more for `dynamo inspect`."""
        ...


class Backend(Protocol):
    """Made by what `Feature.discovery` gives, of the environment."""

    def __str__(self) -> str:
        """The store with its address, as `dynamo status` writes it."""
        ...

    def bridge(self, registry: "MemoryRegistry", node: str) -> "tuple[Actor, Bridge]":
        """The actor, which answers `message.control.Ping`, and what it tells of itself; made again after a crash.

        `node`: the name of this node.
        """
        ...


class Mirror(Protocol):
    """What `MemoryRegistry` tells of the node's own leases and keys, before any watcher hears of it. None raises."""

    def granted(self, lease: int) -> None:
        """A lease began."""
        ...

    def revoked(self, lease: int, keys: list[str]) -> None:
        """A lease ended, and with it its keys."""
        ...

    def put(self, key: str, value: bytes, lease: int) -> None:
        """A key got a value, or another lease."""
        ...

    def deleted(self, key: str, lease: int) -> None:
        """A key was removed from a lease that continues."""
        ...
