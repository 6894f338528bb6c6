"""Blocks of prompts that workers have outside the caches of their devices: what features tell a router of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dynamod.message.kv_events import Load

from .index import BlockIndex


class Fetch(NamedTuple):
    """Blocks of a prompt that a worker would load, after those in its device; their cost, in blocks computed."""

    blocks: int
    cost: float


class OverlapSource(Protocol):
    """Knows of one router's workers which further blocks they would load instead of computing them."""

    @property
    def events(self) -> tuple[type, ...]:
        """Types of events of workers that `apply` takes, in addition to those of devices, requests and load."""
        ...

    def __bool__(self) -> bool:
        """Whether any worker may have such blocks. As long as none has, decisions do not ask for them."""
        ...

    def apply(self, worker: int, event: Any) -> None:
        """Take an event of a worker, which has stated its device before."""
        ...

    def remove_worker(self, worker: int) -> None:
        """A worker is gone, or all that it has is empty; its device's blocks are removed after this."""
        ...

    def find(self, blocks: Sequence[int], overlaps: Mapping[int, int], loads: Mapping[int, Load]) -> dict[int, Fetch]:
        """For a prompt: what each worker would load; workers that would load nothing are left out.

        `overlaps`: how many blocks are in its device, from the start. `loads`: what the workers say of themselves.
        """
        ...


MakeSource = Callable[[BlockIndex], OverlapSource]
"""Makes the source of one router, from the index of the devices, whose numbers of workers a source may use."""


def most(sources: Sequence[Mapping[int, Fetch]]) -> Mapping[int, Fetch]:
    """Of several sources the one, for each worker, that has most of the prompt; of equal ones the cheapest."""
    if len(sources) == 1:
        return sources[0]
    found: dict[int, Fetch] = {}
    for source in sources:
        for worker, fetch in source.items():
            known = found.get(worker)
            if known is None or (fetch.blocks, -fetch.cost) > (known.blocks, -known.cost):
                found[worker] = fetch
    return found
