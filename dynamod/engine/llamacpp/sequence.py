"""One request as the scheduler sees it: its tokens, how far they are computed, and the names of its blocks."""

from array import array
from collections.abc import Sequence as Seq
from typing import Any

from dynamod.kvcache.hashes import PrefixHashes
from dynamod.kvcache.pool import Block
from dynamod.message import tokens


class Sequence:
    """`ids`: prompt and answer so far. `computed`: how many of them are in the KV cache, in the cells of `slot`.

    `held`: its blocks, in order: a full and computed one by its sequence hash. `slot`: llama.cpp's number of the
    sequence, -1 while it has none. `gone`: it has ended, or its reader has left.
    """

    __slots__ = ("_size", "cached", "computed", "gone", "hashes", "held", "ids", "owner", "slot")

    def __init__(self, owner: Any, ids: Seq[int], size: int, hashes: PrefixHashes | None = None) -> None:
        self.owner = owner
        self.ids = array("i", ids)
        self.computed = 0
        self.cached = 0  # tokens found in the cache at the last admission
        self.held: list[Block] = []
        self.slot = -1
        self.gone = False
        self._size = size
        self.hashes = PrefixHashes(size) if hashes is None else hashes  # of its first blocks

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.ids) - self.computed

    def names(self, count: int) -> list[int]:
        """Sequence hashes of the first `count` blocks, which must be full."""
        names, size = self.hashes.blocks, self._size
        if len(names) < count:
            self.hashes.extend(tokens.pack(self.ids[len(names) * size : count * size]))
        return names if len(names) == count else names[:count]

    def name(self, index: int) -> int:
        """Sequence hash of a full block."""
        names = self.hashes.blocks
        return names[index] if index < len(names) else self.names(index + 1)[index]

    def local(self, index: int) -> int:
        """Local hash of a block that has been named."""
        return self.hashes.local[index]
