"""One request as the scheduler sees it: its tokens, how far they are computed, and the names of its blocks."""

from array import array
from collections.abc import Sequence as Seq
from typing import Any

from dynamod.kvcache.hashes import chain, local_hashes
from dynamod.kvcache.pool import Block
from dynamod.message import tokens


class Sequence:
    """`ids`: prompt and answer so far. `computed`: how many of them are in the KV cache, in the cells of `slot`.

    `held`: its blocks, in order: a full and computed one by its sequence hash. `slot`: llama.cpp's number of the
    sequence, -1 while it has none. `gone`: it has ended, or its reader has left.
    """

    __slots__ = ("_local", "_names", "_size", "cached", "computed", "gone", "held", "ids", "owner", "slot")

    def __init__(self, owner: Any, ids: Seq[int], size: int) -> None:
        self.owner = owner
        self.ids = array("i", ids)
        self.computed = 0
        self.cached = 0  # tokens found in the cache at the last admission
        self.held: list[Block] = []
        self.slot = -1
        self.gone = False
        self._size = size
        self._names: list[int] = []
        self._local: list[int] = []

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.ids) - self.computed

    def known(self, local: Seq[int], names: Seq[int]) -> None:
        """Its first blocks have been hashed already."""
        self._local, self._names = list(local), list(names)

    def names(self, count: int) -> list[int]:
        """Sequence hashes of the first `count` blocks, which must be full."""
        names, size = self._names, self._size
        if len(names) < count:
            packed = tokens.pack(self.ids[len(names) * size : count * size])
            local = local_hashes(packed, size)
            names += chain(local, names[-1] if names else None)
            self._local += local
        return names if len(names) == count else names[:count]

    def name(self, index: int) -> int:
        """Sequence hash of a full block."""
        return self._names[index] if index < len(self._names) else self.names(index + 1)[index]

    def local(self, index: int) -> int:
        """Local hash of a block that has been named."""
        return self._local[index]
