"""The mocker's tiers: the names and the rules of real ones, and the time that a load would take."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamod.kvcache.pool import Block
from dynamod.kvcache.store import BlockStore
from dynamod.kvcache.tier_settings import GB

from .arguments import SchedulerSettings
from .timing import Timing

if TYPE_CHECKING:
    from .scheduler import Sequence

_PROMPT = 1024
"""Tokens of a prompt for which computing a block is timed."""


def block_times(settings: SchedulerSettings, timing: Timing) -> tuple[float, float, float]:
    """Seconds that a block takes: to compute it, to load it from memory of the host, from files."""
    prefill = (timing.prefill_ms(_PROMPT) - timing.prefill_ms(0)) / _PROMPT * settings.block_size / 1000
    size = settings.block_size * settings.kv_bytes_per_token / GB
    return prefill, size / settings.host_gbps, size / settings.disk_gbps


def load_seconds(tiers: BlockStore | None, names: Seq[int], times: tuple[float, float, float]) -> float:
    """Seconds until blocks have come from tiers. `times`: of a block, as `block_times` says."""
    levels = [tiers.where(name) for name in names] if tiers is not None else []
    _, host, disk = times
    return sum([host if level is not None and level.medium == "CPU_PINNED" else disk for level in levels])


@dataclass(slots=True, eq=False)
class Load:
    """A prompt with all its room `held`; its first blocks are `here`, `names` come, and the last one is `due`."""

    sequence: "Sequence"
    held: list[Block]
    here: int
    names: Seq[int]
    due: float


class Loads:
    """What is being loaded. A tier loads one block after the other. Time passes by `advance`, in milliseconds."""

    def __init__(self, tiers: BlockStore, settings: SchedulerSettings) -> None:
        self.tiers = tiers
        self.all: list[Load] = []
        self._size = settings.block_size * settings.kv_bytes_per_token
        speeds = {"CPU_PINNED": settings.host_gbps, "DISK": settings.disk_gbps}
        self._ms = {level: self._size / (speeds[level.medium] * GB) * 1000 for level in tiers.levels}
        self._free = dict.fromkeys(tiers.levels, 0.0)  # when it has loaded all that it was asked for
        self._now = 0.0

    def begin(self, sequence: "Sequence", held: list[Block], here: int, names: Seq[int]) -> None:
        """Load blocks that are in tiers; those of files are in the host's memory too from then on."""
        due = self._now
        for name in names:
            level = self.tiers.where(name)
            assert level is not None
            due = max(due, self._free[level]) + self._ms[level]
            self._free[level] = due
            level.loaded += 1
            level.load_seconds += self._ms[level] / 1000
        for name in names:
            self.tiers.levels[0].put(name, self._size)
        self.all.append(Load(sequence, held, here, names, due))

    def copy(self, names: Seq[Block]) -> None:
        """Copy blocks that have come into the device, as far as they were asked for often enough."""
        for name in reversed(names):
            if isinstance(name, int) and self.tiers.wants(name):
                self.tiers.put(name, self._size)

    def advance(self, ms: float) -> None:
        """Time passes."""
        self._now += ms

    @property
    def wait(self) -> float:
        """Milliseconds until the next prompt has all its blocks."""
        return max(0.0, min(load.due for load in self.all) - self._now)

    def take(self) -> list[Load]:
        """The prompts that have all their blocks."""
        here = [load for load in self.all if load.due <= self._now]
        self.all = [load for load in self.all if load.due > self._now]
        return here

    def drop(self, sequence: "Sequence") -> Load | None:
        """No request waits for a prompt any more. Returns the load of the prompt, None where there is none."""
        found = next((load for load in self.all if load.sequence is sequence), None)
        if found is not None:
            self.all.remove(found)
        return found
