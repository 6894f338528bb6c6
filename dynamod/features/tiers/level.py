"""One tier: which blocks are in it, within how many bytes, which go next; and the tier that is memory of the host."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from dynamod.kvcache.store import LevelStatistics, Publish
from dynamod.message.kv_events import Medium, TierRemoved, TierStored
from dynamod.observe.bounded import bounded


class Level:
    """Names of blocks and their sizes, `most` bytes in all; the least recently used go first. Not for two threads.

    This one keeps no bytes, which is enough where nothing is really loaded. A caller that loads blocks adds to
    `loaded`, `failed` and `load_seconds`. `publish` gets the events.
    """

    def __init__(self, medium: Medium, most: int, publish: Publish) -> None:
        self.medium, self.most = medium, most
        self.used = 0
        self.stored = self.dropped = self.loaded = self.refused = self.failed = self.late = 0
        self.load_seconds = 0.0
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._publish = publish
        bounded(self, "KV blocks in a tier", most, lambda one: one.used, "bytes", medium)

    def __contains__(self, name: int) -> bool:
        return name in self._sizes

    def ready(self, name: int) -> bool:
        """Whether a block is here, and can be had now."""
        return name in self._sizes

    def gave_up(self) -> None:
        """A request has stopped waiting for a block."""
        self.late += 1

    def touch(self, names: Iterable[int]) -> None:
        """These are used; of them the last one is used most recently. Unknown ones pass."""
        sizes = self._sizes
        for name in names:
            if name in sizes:
                sizes.move_to_end(name)

    def put(self, name: int, size: int, data: bytes = b"") -> None:
        """Take a block; one that is here stays as it is. Blocks that were used longest ago make room."""
        if name in self._sizes:
            return
        if size > self.most:
            self.refused += 1
            return
        self.enter(((name, size),))
        self.stored += 1

    def enter(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Blocks are here, with their sizes; the last one is the most recently used."""
        sizes, gone = self._sizes, list[int]()
        for name, size in blocks:
            sizes[name] = size
            self.used += size
        self._publish(TierStored(self.medium, tuple([name for name, _ in blocks])))
        while self.used > self.most:
            name, size = sizes.popitem(last=False)
            self.used -= size
            gone.append(name)
        self.dropped += len(gone)
        self._leave(gone)

    def discard(self, name: int) -> None:
        """A block is lost. An unknown one passes."""
        size = self._sizes.pop(name, None)
        if size is not None:
            self.used -= size
            self._leave([name])

    def names(self) -> tuple[int, ...]:
        """All blocks."""
        return tuple(self._sizes)

    def statistics(self) -> LevelStatistics:
        """A snapshot."""
        counts = (self.stored, self.dropped, self.loaded, self.refused, self.failed, self.late)
        return LevelStatistics(len(self._sizes), self.used, *counts, round(self.load_seconds * 1000))

    def _leave(self, gone: Sequence[int]) -> None:
        if gone:
            self._publish(TierRemoved(self.medium, tuple(gone)))
            self.free(gone)

    def free(self, names: Sequence[int]) -> None:
        """These blocks are not here any more: a tier with bytes gives them back."""


class HostLevel(Level):
    """With the bytes of the blocks."""

    def __init__(self, most: int, publish: Publish) -> None:
        super().__init__("CPU_PINNED", most, publish)
        self._data: dict[int, bytes] = {}

    def put(self, name: int, size: int, data: bytes = b"") -> None:
        """Take a block."""
        if name not in self._sizes and size <= self.most:
            self._data[name] = data
        super().put(name, size)

    def get(self, name: int) -> bytes | None:
        """The bytes of a block, None when it is not here."""
        return self._data.get(name)

    def free(self, names: Sequence[int]) -> None:
        """Give their bytes back."""
        for name in names:
            del self._data[name]
