"""Prompts that the mocker computes for other workers, and blocks of prompts that it takes from them.

A block's bytes are made of its sequence hash, so that a wrong one is seen as the wrong KV cells of a real engine never
would be.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dynamod.kvcache.hashes import PrefixHashes
from dynamod.kvcache.pool import Block

from ..batching.handoff import AskRoom, Done, Put, Room
from .arguments import MockerArguments
from .scheduler import Sequence as Scheduled

if TYPE_CHECKING:
    from .engine import Rank


def content(name: int, size: int) -> bytes:
    """The bytes of a block."""
    return (name.to_bytes(8, "little") * (size // 8 + 1))[:size]


class Export:
    """A prompt that is computed for another worker. `hashes`: of its full blocks; `sequence`: set by the engine.

    `left` is called when it ends after its last step, because blocks waited for room.
    """

    sequence: Scheduled
    left: Callable[[], object]

    def __init__(
        self, hashes: PrefixHashes, block_size: int, bytes_per_token: int, put: Put, done: Done, room: AskRoom
    ) -> None:
        self.hashes = hashes
        self._size, self._bytes = block_size, block_size * bytes_per_token
        self._put, self._done, self._sent = put, done, 0
        self._room = Room(room, self._bytes, self._resume)
        self._computed, self._over = 0, False

    def goes_on(self, finished: Sequence[Scheduled]) -> bool:
        """After a step: hand out the blocks that are computed now. `finished`: sequences that have ended with it."""
        self._over = self._over or self.sequence in finished
        self._computed = len(self.hashes.blocks) if self._over else self.sequence.computed // self._size
        return self._give()

    def _give(self) -> bool:
        while self._sent < self._computed and self._room.take():
            name = self.hashes.blocks[self._sent]
            self._sent += 1
            self._put(name, content(name, self._bytes))
        if self._over and self._sent == self._computed:
            self._done(None)
            return False
        return True

    def _resume(self) -> None:
        if not self._give():
            self.left()


class StoredExport:
    """Blocks, each of `size` bytes, for another worker: `here` are put at once, all after them after `seconds`."""

    def __init__(
        self, names: Sequence[int], size: int, here: int, seconds: float, put: Put, done: Done, room: AskRoom
    ) -> None:
        self._names, self._size, self._put, self._done = names, size, put, done
        self._room = Room(room, size, self._give)
        self._here, self._sent = here, 0
        self._timer: asyncio.TimerHandle | None = None
        if here < len(names):
            self._timer = asyncio.get_running_loop().call_later(seconds, self._loaded)
        self._give()

    def cancel(self) -> None:
        """Its reader has left."""
        if self._timer is not None:
            self._timer.cancel()

    def _loaded(self) -> None:
        self._here = len(self._names)
        self._give()

    def _give(self) -> None:
        while self._sent < self._here and self._room.take():
            name = self._names[self._sent]
            self._sent += 1
            self._put(name, content(name, self._size))
        if self._sent == len(self._names):
            self._done(None)


class Imports:
    """A request whose blocks come from another worker (`batching.handoff.Held`). Until `go` it uses own blocks."""

    def __init__(self, sequence: Scheduled, rank: "Rank", arguments: MockerArguments) -> None:
        self._sequence, self._rank, self._scheduler = sequence, rank, rank.scheduler
        self._size = arguments.block_size
        self._bytes = arguments.block_size * arguments.kv_bytes_per_token
        self._seconds = self._bytes / (arguments.transfer_gbps * 1e9) if arguments.transfer_gbps else 0.0
        self._wanted = sequence.blocks[: (sequence.length - 1) // arguments.block_size]
        here = self._scheduler.pool.cached_prefix(self._wanted)
        self._held: list[Block] = list(self._wanted[:here])
        self._scheduler.pool.take(self._held)
        self._put = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    @property
    def span(self) -> int:
        """Tokens of a block."""
        return self._size

    @property
    def first(self) -> int:
        """Blocks that are here."""
        return len(self._held)

    def put(self, name: int, data: bytes) -> bool:
        """Take a block."""
        first = len(self._held)
        if self._over or first >= len(self._wanted):
            return False
        if name != self._wanted[first] or data != content(name, self._bytes):
            return False
        self._scheduler.acting = self._sequence
        if not self._scheduler.insert(self._held[-1] if first else None, name):
            return False
        self._held.append(name)
        self._put += 1
        return True

    def go(self) -> None:
        """Compute the rest, when the transfer of what was put would be over."""
        if not self._over and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._put * self._seconds, self._begin)

    def cancel(self) -> None:
        """The reader has left."""
        if self._timer is not None:
            self._timer.cancel()
        self._leave()
        self._scheduler.remove(self._sequence)

    def _begin(self) -> None:
        self._leave()  # the blocks are cached now, and taken again at once
        self._rank.add(self._sequence)

    def _leave(self) -> None:
        if not self._over:
            self._over = True
            self._scheduler.pool.give_back(self._held)
