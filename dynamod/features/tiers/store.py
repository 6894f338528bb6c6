"""The tiers of one worker: what is copied to them, how far a prompt is found in them, and how its blocks come back."""

import functools
from collections.abc import Callable, Sequence

from dynamod.kvcache.store import LevelStatistics, Loaded
from dynamod.message.kv_events import TierEvent, TierStored

from .asked import Asked
from .disk import DiskLevel
from .level import HostLevel, Level

AHEAD = 16
"""Blocks of a prompt that are read from files before they are taken."""


class Tiers:
    """A `kvcache.store.BlockStore`. `levels`: the fastest first.

    A block is copied to all of them once it was asked for `enough` times.
    The block stays in the device then: no request has to wait for a copy when the device needs its room.
    """

    def __init__(self, levels: Sequence[Level], enough: int = 2) -> None:
        self.levels = levels
        self._asked = Asked(enough)

    def ask(self, names: Sequence[int]) -> None:
        """A prompt has these blocks, the first ones first. The end of a prompt leaves tiers before its beginning."""
        self._asked.ask(names)
        for level in self.levels:
            level.touch(reversed(names))

    def wants(self, name: int) -> bool:
        """Whether a block that is in the device should be copied."""
        return name not in self.levels[0] and self._asked.often(name)

    def put(self, name: int, size: int, data: bytes = b"") -> None:
        """A copy of a block. In a simulation there is no `data`."""
        for level in self.levels:
            level.put(name, size, data)

    def found(self, names: Sequence[int]) -> int:
        """How many of these blocks are in tiers, up to the first that is not."""
        return next((count for count, name in enumerate(names) if self.where(name) is None), len(names))

    def where(self, name: int) -> Level | None:
        """The fastest level from which a block can be had now."""
        return next((level for level in self.levels if level.ready(name)), None)

    def load(self, names: Sequence[int], arrived: Callable[[], object]) -> "Loading":
        """Have blocks of a prompt loaded, in order. `arrived` is called when one more can be taken."""
        return Loading(self, names, arrived)

    @property
    def read_seconds(self) -> float:
        """What a block took that came from files, on average; 0 without any."""
        level = self.levels[-1]
        return level.load_seconds / level.loaded if isinstance(level, DiskLevel) and level.loaded else 0.0

    def snapshot(self) -> tuple[TierEvent, ...]:
        """All blocks, for a new subscriber."""
        return tuple(TierStored(level.medium, names) for level in self.levels if (names := level.names()))

    def statistics(self, medium: str) -> LevelStatistics | None:
        """Of a tier; None where there is no such tier."""
        return next((level.statistics() for level in self.levels if level.medium == medium), None)

    async def close(self) -> None:
        """Give back what is open."""
        for level in self.levels:
            if isinstance(level, DiskLevel):
                await level.close()


class Loading:
    """The blocks of a prompt on their way from tiers, in order. `arrived` is called when one more can be taken.

    Those from files are kept in the host's memory too, as they were asked for.
    """

    def __init__(self, tiers: Tiers, names: Sequence[int], arrived: Callable[[], object]) -> None:
        self._tiers, self._names, self._arrived = tiers, names, arrived
        self._next = self._asked = 0  # the block to take, and the first that was not asked for
        self._end = len(names)
        self._read: dict[int, bytes | None] = {}  # by their places; None: it is being read
        self._read_ahead()

    @property
    def over(self) -> bool:
        """Whether no more blocks come."""
        return self._next >= self._end

    def take(self) -> Loaded | None:
        """The next block; None when it is not here yet, or when it is `over`."""
        place = self._next
        if self.over or (data := self._read[place]) is None:
            return None
        del self._read[place]
        self._next += 1
        self._read_ahead()
        return Loaded(self._names[place], data)

    def give_up(self) -> None:
        """It takes too long: only blocks that are here can be taken."""
        place = next((place for place in range(self._next, self._end) if self._read.get(place) is None), self._end)
        if place < self._end:
            self._end = place
            level = self._tiers.where(self._names[place])
            if level is not None:
                level.gave_up()

    def _read_ahead(self) -> None:
        for place in range(self._asked, min(self._end, self._next + AHEAD)):
            name, data = self._names[place], None
            level = self._tiers.where(name)
            if isinstance(level, HostLevel):
                data = level.get(name)
                level.loaded += 1
            elif isinstance(level, DiskLevel):
                level.read(name, functools.partial(self._came, place))
            else:  # it has gone meanwhile
                self._end = place
                return
            self._read[place] = data
            self._asked = place + 1

    def _came(self, place: int, data: bytes | None) -> None:
        if data is None:
            self._end = min(self._end, place)
        else:
            self._read[place] = data
            self._tiers.levels[0].put(self._names[place], len(data), data)
        self._arrived()
