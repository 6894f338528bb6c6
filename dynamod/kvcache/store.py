"""What engines ask of a store of KV blocks below the device. Features have such stores (`Feature.block_stores`)."""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple, NoReturn, Protocol

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.message.errors import UserError
from dynamod.message.kv_events import Medium, TierEvent

from .tier_settings import TierSettings

Publish = Callable[[TierEvent], object]


class LevelStatistics(msgspec.Struct, frozen=True):
    """A tier of KV blocks. Blocks and bytes now; blocks that came, went for want of room, were loaded; loading time.

    `refused`: not taken, as too much was on its way, or they had left the device; `failed`: not written, or not read as
    they were written; `late`: not waited for.
    """

    blocks: Annotated[int, Meta(description="Blocks in the tier.")]
    bytes: Annotated[int, Meta(description="Bytes in the tier.")]
    stored: Annotated[Total, Meta(description="Blocks that were stored.")]
    dropped: Annotated[Total, Meta(description="Blocks that were dropped for want of room.")]
    loaded: Annotated[Total, Meta(description="Blocks that were loaded.")]
    refused: Annotated[
        Total,
        Meta(description="Blocks that were not stored: too many were on their way, or the block had left the device."),
    ]
    failed: Annotated[Total, Meta(description="Blocks that could not be written, or not be read as written.")]
    late: Annotated[Total, Meta(description="Blocks whose load took too long and was not waited for.")]
    load_milliseconds: Annotated[Total, Meta(description="Time of all loads.")]


class StoreLevel(Protocol):
    """One medium of a store. Engines add to the counts: of `LevelStatistics`, and `load_seconds`."""

    medium: Medium
    loaded: int
    refused: int
    failed: int
    load_seconds: float

    def __contains__(self, name: int) -> bool: ...

    def put(self, name: int, size: int, data: bytes = b"") -> None:
        """Take a block; one that is here stays as it is."""
        ...

    def discard(self, name: int) -> None:
        """A block is lost. An unknown one passes."""
        ...


class Loaded(NamedTuple):
    """A block that has come out of a store."""

    name: int
    data: bytes


class BlockLoading(Protocol):
    """The blocks of a prompt on their way out of a store, in order."""

    @property
    def over(self) -> bool:
        """Whether no more blocks come."""
        ...

    def take(self) -> Loaded | None:
        """The next block; None when it is not here yet, or when it is `over`."""
        ...

    def give_up(self) -> None:
        """It takes too long: only blocks that are here can be taken."""
        ...


class BlockStore(Protocol):
    """The store of one worker: what is copied to it, how far a prompt is found in it, and how its blocks come back.

    Blocks are named by their sequence hashes. All methods but `close` return at once.
    """

    @property
    def levels(self) -> Sequence[StoreLevel]:
        """At least one; the fastest first."""
        ...

    def ask(self, names: Sequence[int]) -> None:
        """A prompt has these blocks, the first ones first."""
        ...

    def wants(self, name: int) -> bool:
        """Whether a block that is in the device should be copied."""
        ...

    def put(self, name: int, size: int, data: bytes = b"") -> None:
        """A copy of a block of `size` bytes. In a simulation there is no `data`."""
        ...

    def found(self, names: Sequence[int]) -> int:
        """How many of these blocks are here, up to the first that is not."""
        ...

    def where(self, name: int) -> StoreLevel | None:
        """The fastest level from which a block can be had now."""
        ...

    def load(self, names: Sequence[int], arrived: Callable[[], object]) -> BlockLoading:
        """Have these blocks loaded. `arrived` is called when one more can be taken."""
        ...

    @property
    def read_seconds(self) -> float:
        """What a block took that came from files, on average; 0 without any."""
        ...

    def snapshot(self) -> tuple[TierEvent, ...]:
        """All blocks, for a new subscriber."""
        ...

    def statistics(self, medium: str) -> LevelStatistics | None:
        """Of a level; None where there is no such level."""
        ...

    async def close(self) -> None:
        """Give back what is open."""


class BlockStores(Protocol):
    """Makes stores. `publish` gets the events of blocks that come and go, for routers."""

    async def open(self, settings: TierSettings, layout: str, publish: Publish) -> BlockStore | None:
        """A store; None where the settings ask for none.

        `layout`: what must agree for the bytes of a block to mean the same. Raises UserError for a folder that cannot
        be used.
        """
        ...

    def simulated(self, settings: TierSettings, publish: Publish) -> BlockStore | None:
        """A store of names without bytes, of which `load` is not called; None where the settings ask for none."""
        ...


FindStores = Callable[[str], BlockStores]
"""Gives what makes stores. The text is the setting that needs one. Raises UserError where no feature has stores."""


def no_stores(what: str) -> NoReturn:
    """For engines that are given no stores."""
    raise UserError(f"{what}: there is no store of KV blocks here", f"leave out {what}")
