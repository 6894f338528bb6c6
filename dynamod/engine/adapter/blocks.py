"""The KV blocks of an engine that names them itself, as routers know them: by hashes of their tokens."""

import logging
from collections.abc import Callable, Sequence

from dynamod.kvcache.hashes import chain, local_hashes
from dynamod.message import tokens
from dynamod.message.kv_events import Removed, Stored

from .wire import DEVICE, AllBlocksCleared, BlockRemoved, BlockStored, Event, Name

log = logging.getLogger("dynamod.engine")

Key = tuple[int | None, Name]
"""A block of one rank: its group, and the engine's name."""


class EngineBlocks:
    """Translates the events of all ranks into those of one cache, which holds a block as long as any rank does.

    References are counted: an engine reports a block once for each physical block with that content, and removes it as
    often. `publish` gets an event only when a block appears or is gone.
    """

    def __init__(self, block_size: int, publish: Callable[[Stored | Removed], None]) -> None:
        self.block_size = block_size
        self._publish = publish
        self._ranks: dict[int, dict[Key, list[int]]] = {}  # key -> [sequence hash, how often it is stored]
        self._held: dict[int, int] = {}  # sequence hash -> keys of all ranks
        self._warned = False

    @property
    def names(self) -> tuple[int, ...]:
        """Sequence hashes of all blocks that are there."""
        return tuple(self._held)

    def uncached(self, blocks: Sequence[int], length: int) -> int:
        """Tokens to compute of a prompt of `length`, whose full blocks these are. The last is always computed."""
        cached = next((depth for depth, block in enumerate(blocks) if block not in self._held), len(blocks))
        return max(1, length - cached * self.block_size)

    def apply(self, rank: int, event: Event) -> None:
        """An event of a rank."""
        match event:
            case BlockStored():
                self._stored(rank, event)
            case BlockRemoved() if event.medium in DEVICE:
                self._removed(rank, event)
            case AllBlocksCleared():
                self.forget(rank)

    def forget(self, rank: int) -> None:
        """The cache of the rank is empty, or what is in it is not known any more."""
        gone = [block for block, _count in self._ranks.pop(rank, {}).values() if self._released(block)]
        if gone:
            self._publish(Removed(tuple(gone)))

    def _stored(self, rank: int, event: BlockStored) -> None:
        if not event.plain:
            return
        if event.block_size != self.block_size or len(event.token_ids) != event.block_size * len(event.block_hashes):
            self._warn(f"has {event.block_size} tokens, not {self.block_size}")
            return
        known, before = self._ranks.setdefault(rank, {}), None
        if event.parent_block_hash is not None:
            parent = known.get((event.group_idx, event.parent_block_hash))
            if parent is None:  # of special content, or reported before we listened
                return
            before = parent[0]
        local = local_hashes(tokens.pack(event.token_ids), self.block_size)
        first, fresh = before, list[tuple[int, int]]()  # new blocks in a row, behind block `first`
        for name, here, block in zip(event.block_hashes, local, chain(local, before), strict=True):
            entry = known.setdefault((event.group_idx, name), [block, 0])
            entry[1] += 1
            if entry[1] == 1:
                self._held[block] = self._held.get(block, 0) + 1
            if entry[1] == 1 and self._held[block] == 1:
                fresh.append((block, here))
                continue
            self._report(first, fresh)
            first, fresh = block, []
        self._report(first, fresh)

    def _report(self, parent: int | None, fresh: Sequence[tuple[int, int]]) -> None:
        if fresh:
            self._publish(Stored(parent, tuple([block for block, _ in fresh]), tuple([local for _, local in fresh])))

    def _removed(self, rank: int, event: BlockRemoved) -> None:
        known, gone = self._ranks.get(rank, {}), list[int]()
        for name in event.block_hashes:
            entry = known.get((event.group_idx, name))
            if entry is None:
                continue
            entry[1] -= 1
            if entry[1] == 0:
                del known[event.group_idx, name]
                if self._released(entry[0]):
                    gone.append(entry[0])
        if gone:
            self._publish(Removed(tuple(gone)))

    def _released(self, block: int) -> bool:
        """One key less; whether that was the last."""
        self._held[block] -= 1
        if self._held[block]:
            return False
        del self._held[block]
        return True

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("KV blocks are not published to routers: a block %s", problem)
