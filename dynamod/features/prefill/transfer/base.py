"""What is moved, what can go wrong, and what a backend offers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from .reading import ReaderEnd
    from .sending import SourceEnd

Kind = Literal["unreachable", "gone", "layout", "damaged", "short", "stalled", "failed"]


class TransferError(Exception):
    """Blocks that do not come; `str()` says why in one line.

    `kind`: unreachable (no answer at any address), gone (no such session, or it has another reader), layout (the
    bytes would mean something else here), damaged (a checksum or a frame is wrong), short (the connection ended before
    the last block), stalled (the source is silent), failed (the source has said so).
    """

    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(why)
        self.kind: Kind = kind


@dataclass(frozen=True, slots=True)
class Block:
    """A KV block: its sequence hash (unsigned 64 bit) and its bytes."""

    name: int
    data: bytes


class Listening(NamedTuple):
    """Where a backend listens, and what ends that. `clear`: readers without TLS are served there, too."""

    address: str
    close: Callable[[], None]
    clear: bool = False


class Backend(Protocol):
    """A way for the bytes, between two processes. One object serves both sides."""

    async def listen(
        self, source: "Callable[[type[SourceEnd]], SourceEnd]", host: str, folder: Path | None, port: int
    ) -> Listening | None:
        """Listen at `host` or in `folder`; None: this process cannot offer it. Raises OSError.

        `port`: the one for TCP; 0: a free one.

        Each connection gets its end from `source`, which is given the class.
        """
        ...

    async def connect(self, address: str, reader: "Callable[[type[ReaderEnd]], ReaderEnd]") -> "ReaderEnd":
        """Connect to a source; its end comes from `reader`. Raises OSError when that cannot be reached."""
        ...
