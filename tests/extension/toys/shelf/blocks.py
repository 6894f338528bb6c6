"""A shelf with one board, where each block of a prompt is put at once; and what routers know of shelves."""

from collections.abc import Callable, Mapping, Sequence

from dynamod.kvcache.store import BlockLoading, LevelStatistics, Loaded, Publish
from dynamod.kvcache.tier_settings import TierSettings
from dynamod.message.kv_events import Load, Medium, TierEvent, TierStored
from dynamod.router.index import BlockIndex
from dynamod.router.overlap import Fetch


class Shelf:
    """A store that is its only level."""

    medium: Medium = "CPU_PINNED"

    def __init__(self, publish: Publish) -> None:
        self.blocks: dict[int, bytes] = {}
        self.asked: list[Sequence[int]] = []
        self.loaded = self.refused = self.failed = 0
        self.load_seconds = self.read_seconds = 0.0
        self._publish = publish

    @property
    def levels(self) -> "tuple[Shelf]":
        return (self,)

    def __contains__(self, name: int) -> bool:
        return name in self.blocks

    def ask(self, names: Sequence[int]) -> None:
        self.asked.append(names)

    def wants(self, name: int) -> bool:
        return name not in self.blocks

    def put(self, name: int, size: int, data: bytes = b"") -> None:
        if name not in self.blocks:
            self.blocks[name] = data
            self._publish(TierStored(self.medium, (name,)))

    def found(self, names: Sequence[int]) -> int:
        return next((count for count, name in enumerate(names) if name not in self.blocks), len(names))

    def where(self, name: int) -> "Shelf | None":
        return self if name in self.blocks else None

    def load(self, names: Sequence[int], arrived: Callable[[], object]) -> BlockLoading:
        return Taking([Loaded(name, self.blocks[name]) for name in names if name in self.blocks])

    def discard(self, name: int) -> None:
        self.blocks.pop(name, None)

    def snapshot(self) -> tuple[TierEvent, ...]:
        return (TierStored(self.medium, tuple(self.blocks)),)

    def statistics(self, medium: str) -> LevelStatistics | None:
        count = len(self.blocks)
        return LevelStatistics(count, 0, count, 0, self.loaded, 0, 0, 0, 0) if medium == self.medium else None

    async def close(self) -> None:
        self.blocks.clear()


class Taking:
    def __init__(self, blocks: list[Loaded]) -> None:
        self._blocks = blocks

    @property
    def over(self) -> bool:
        return not self._blocks

    def take(self) -> Loaded | None:
        return self._blocks.pop(0) if self._blocks else None

    def give_up(self) -> None:
        self._blocks.clear()


class Shelves:
    async def open(self, settings: TierSettings, layout: str, publish: Publish) -> Shelf | None:
        return self.simulated(settings, publish)

    def simulated(self, settings: TierSettings, publish: Publish) -> Shelf | None:
        return Shelf(publish) if settings.tiered else None


class ShelfIndex:
    """A block on a shelf costs a tenth of a block that is computed. The order of blocks on a shelf does not matter."""

    events = (TierStored,)

    def __init__(self, device: BlockIndex) -> None:
        self.shelves: dict[int, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.shelves)

    def apply(self, worker: int, event: TierStored) -> None:
        self.shelves.setdefault(worker, set()).update(event.blocks)

    def remove_worker(self, worker: int) -> None:
        self.shelves.pop(worker, None)

    def find(self, blocks: Sequence[int], overlaps: Mapping[int, int], loads: Mapping[int, Load]) -> dict[int, Fetch]:
        found = {worker: len(shelf.intersection(blocks)) for worker, shelf in self.shelves.items()}
        return {worker: Fetch(count, count / 10) for worker, count in found.items() if count}
