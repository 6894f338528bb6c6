"""Which worker has which blocks in tiers below its device, and what loading them costs compared with computing them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dynamod.message.kv_events import Load, Medium, Removed, Snapshot, TierEvent, TierRemoved, TierStored
from dynamod.router.bitsets import prefixes
from dynamod.router.index import BlockIndex
from dynamod.router.overlap import Fetch

UNKNOWN: dict[Medium, float] = {"CPU_PINNED": 0.25, "DISK": 0.75}
"""The time to load a block by that to compute it, where a worker has not measured both: NVIDIA Dynamo's constants."""


class TierIndex:
    """An `OverlapSource`. `device`: the index of the devices, whose numbers of workers this uses."""

    events = (TierStored, TierRemoved)

    def __init__(self, device: BlockIndex) -> None:
        self._device = device
        self._levels: dict[Medium, BlockIndex] = {}

    def __bool__(self) -> bool:
        return bool(self._levels)

    def apply(self, worker: int, event: TierEvent) -> None:
        """Take an event of a worker, which has stated its device before."""
        level = self._levels.get(event.medium)
        if level is None:
            level = self._levels[event.medium] = BlockIndex(bits=self._device.bits)
        if isinstance(event, TierStored):
            level.apply(worker, Snapshot(event.blocks, event.blocks))
        else:
            level.apply(worker, Removed(event.blocks))

    def remove_worker(self, worker: int) -> None:
        """A worker is gone, or its tiers are empty; its device's blocks are removed after this."""
        for level in self._levels.values():
            level.remove_worker(worker)

    def find(self, blocks: Sequence[int], overlaps: Mapping[int, int], loads: Mapping[int, Load]) -> dict[int, Fetch]:
        """For a prompt: what each worker would load. `overlaps`: how many blocks are in its device, from the start.

        After the first block that only a slower tier has, all are counted as that one's.
        """
        found: dict[int, Fetch] = {}
        reach, known = overlaps, [self._device]
        for medium in UNKNOWN:
            level = self._levels.get(medium)
            if level is None:
                continue
            known.append(level)
            further = prefixes(_either(known), self._device.bits, blocks)
            for worker, depth in further.items():
                more = depth - reach.get(worker, 0)
                if more > 0:
                    before = found.get(worker, Fetch(0, 0.0))
                    cost = more * _ratio(medium, loads.get(worker))
                    found[worker] = Fetch(before.blocks + more, before.cost + cost)
            reach = {**overlaps, **further}
        return found


def _either(levels: Iterable[BlockIndex]) -> Callable[[int, int], int]:
    gets = [level.mask for level in levels]

    def get(block: int, _none: int) -> int:
        mask = 0
        for one in gets:
            mask |= one(block, 0)
        return mask

    return get


def _ratio(medium: Medium, load: Load | None) -> float:
    """At most 1: a worker computes what would take longer to load."""
    if load is None or not load.prefill_ms:
        return UNKNOWN[medium]
    measured = load.host_ms if medium == "CPU_PINNED" else load.disk_ms
    return min(1.0, measured / load.prefill_ms) if measured else UNKNOWN[medium]
