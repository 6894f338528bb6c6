"""The KV blocks of an engine that names them itself, as routers know them: by hashes of their tokens."""

import logging
from collections.abc import Callable, Iterable, Sequence

from dynamod.kvcache.hashes import chain, local_hashes
from dynamod.message import tokens
from dynamod.message.kv_events import Removed, Stored, TierEvent, TierRemoved, TierStored

from .wire import DEVICE, HOST, AllBlocksCleared, BlockRemoved, BlockStored, Event, Name

log = logging.getLogger("dynamod.engine")

Key = tuple[int | None, Name]
"""A block of one rank: its group, and the engine's name."""


class Held:
    """The blocks of all ranks on one medium, which holds a block as long as any rank does.

    References are counted: an engine reports a block once for each physical block with that content, and removes it as
    often. `came`, `went`: blocks that appeared, and that are gone.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, dict[Key, list[int]]] = {}  # key -> [sequence hash, how often it is stored]
        self._blocks: dict[int, int] = {}  # sequence hash -> keys of all ranks
        self.came = self.went = 0

    @property
    def names(self) -> tuple[int, ...]:
        """Sequence hashes of all blocks that are there."""
        return tuple(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, rank: int, key: Key) -> int | None:
        """The sequence hash of a block of a rank, None when it has no such block."""
        entry = self._ranks.get(rank, {}).get(key)
        return None if entry is None else entry[0]

    def add(self, rank: int, key: Key, block: int) -> bool:
        """One reference more; whether the block appears by it."""
        entry = self._ranks.setdefault(rank, {}).setdefault(key, [block, 0])
        entry[1] += 1
        if entry[1] > 1:
            return False
        count = self._blocks[block] = self._blocks.get(block, 0) + 1
        self.came += count == 1
        return count == 1

    def remove(self, rank: int, keys: Iterable[Key]) -> tuple[int, ...]:
        """One reference less of each; the blocks that are gone by it."""
        known, gone = self._ranks.get(rank, {}), list[int]()
        for key in keys:
            entry = known.get(key)
            if entry is None:
                continue
            entry[1] -= 1
            if entry[1] == 0:
                del known[key]
                gone.append(entry[0])
        return self._released(gone)

    def forget(self, rank: int) -> tuple[int, ...]:
        """The rank has no blocks any more. Returns the blocks that no rank has now."""
        return self._released([block for block, _count in self._ranks.pop(rank, {}).values()])

    def _released(self, blocks: Sequence[int]) -> tuple[int, ...]:
        gone = []
        for block in blocks:
            self._blocks[block] -= 1
            if not self._blocks[block]:
                del self._blocks[block]
                gone.append(block)
        self.went += len(gone)
        return tuple(gone)


class EngineBlocks:
    """Translates the events of all ranks into those of one cache, and of one tier in memory of the host.

    `publish` gets an event only when a block appears or is gone.
    """

    def __init__(self, block_size: int, publish: Callable[[Stored | Removed | TierEvent], None]) -> None:
        self.block_size = block_size
        self.device, self.host = Held(), Held()
        self._publish = publish
        self._warned = False

    @property
    def names(self) -> tuple[int, ...]:
        """Sequence hashes of all blocks of the cache."""
        return self.device.names

    def uncached(self, blocks: Sequence[int], length: int) -> int:
        """Tokens to compute of a prompt of `length`, whose full blocks these are. The last is always computed."""
        device, host = self.device, self.host
        missing = (depth for depth, block in enumerate(blocks) if block not in device and block not in host)
        return max(1, length - next(missing, len(blocks)) * self.block_size)

    def apply(self, rank: int, event: Event) -> None:
        """An event of a rank."""
        match event:
            case BlockStored():
                self._stored(rank, event)
            case BlockRemoved():
                self._removed(rank, event)
            case AllBlocksCleared():
                self.forget(rank)

    def forget(self, rank: int) -> None:
        """The cache of the rank is empty, or what is in it is not known any more."""
        self._gone(self.device.forget(rank))
        self._gone_from_host(self.host.forget(rank))

    def _stored(self, rank: int, event: BlockStored) -> None:
        if not event.plain:
            return
        if event.block_size != self.block_size or len(event.token_ids) != event.block_size * len(event.block_hashes):
            if event.block_size:  # 0: a block in memory of the host of which no more is said
                self._warn(f"has {event.block_size} tokens, not {self.block_size}")
            return
        before = None
        if event.parent_block_hash is not None:
            key = (event.group_idx, event.parent_block_hash)
            before = self.device.get(rank, key)
            before = self.host.get(rank, key) if before is None else before
            if before is None:  # of special content, or reported before we listened
                return
        local = local_hashes(tokens.pack(event.token_ids), self.block_size, event.lora_name or "")
        held = self.device if event.medium in DEVICE else self.host
        first, fresh = before, list[tuple[int, int]]()  # new blocks in a row, after block `first`
        for name, here, block in zip(event.block_hashes, local, chain(local, before), strict=True):
            if held.add(rank, (event.group_idx, name), block):
                fresh.append((block, here))
                continue
            self._report(held, first, fresh)
            first, fresh = block, []
        self._report(held, first, fresh)

    def _report(self, held: Held, parent: int | None, fresh: Sequence[tuple[int, int]]) -> None:
        if not fresh:
            return
        blocks = tuple([block for block, _ in fresh])
        if held is self.device:
            self._publish(Stored(parent, blocks, tuple([local for _, local in fresh])))
        else:
            self._publish(TierStored("CPU_PINNED", blocks))

    def _removed(self, rank: int, event: BlockRemoved) -> None:
        keys = [(event.group_idx, name) for name in event.block_hashes]
        if event.medium in DEVICE:
            self._gone(self.device.remove(rank, keys))
        elif event.medium in HOST:
            self._gone_from_host(self.host.remove(rank, keys))

    def _gone(self, blocks: tuple[int, ...]) -> None:
        if blocks:
            self._publish(Removed(blocks))

    def _gone_from_host(self, blocks: tuple[int, ...]) -> None:
        if blocks:
            self._publish(TierRemoved("CPU_PINNED", blocks))

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("KV blocks are not published to routers: a block %s", problem)
