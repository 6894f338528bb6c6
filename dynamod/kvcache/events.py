"""What a cache tells of its blocks. One event may carry many blocks; events of one worker are numbered from 1."""

import msgspec


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored", gc=False):
    """Blocks that follow each other, behind block `parent` (None: from the start of a prompt).

    `blocks`: the engine's own names; `local`: local hashes (kvcache.hashes) of the same blocks. All unsigned 64 bit.
    For our own engines the name of a block is its sequence hash.
    """

    parent: int | None
    blocks: tuple[int, ...]
    local: tuple[int, ...]


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed", gc=False):
    """Blocks, by the engine's names, that are not in the cache any more."""

    blocks: tuple[int, ...]


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared", gc=False):
    """The cache is empty now."""


CacheEvent = Stored | Removed | Cleared
