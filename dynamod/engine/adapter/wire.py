"""The messages in which vLLM and SGLang report their KV blocks over ZMQ: MessagePack, three kinds of events.

A message is `[topic, sequence number as big-endian u64, batch]`, and a batch is `[time, events, data-parallel rank]`.
Fields that are not named here are ignored; so are kinds of events that a later version adds.
"""

from typing import Any

import msgspec

Name = int | bytes
"""The engine's own name of a block: unsigned in vLLM, signed in SGLang, perhaps bytes."""

DEVICE = (None, "GPU")
"""The medium of blocks that the engine can use at once (a CPU engine says GPU too)."""
HOST = ("CPU", "CPU_PINNED")
"""Of those in memory of the host, by vLLM and by SGLang."""


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored", gc=False):
    """Blocks that follow each other after `parent_block_hash`. `token_ids`: of all of them.

    `extra_keys`: per block, what its content depends on in addition to tokens (a LoRA, an image). `lora_name`: of the
    adapter that has computed them, for vLLM its digest. `group_idx`: layers of different kinds have groups of their
    own. `kv_cache_spec_sliding_window`: set when old blocks of the group go.
    """

    block_hashes: list[Name]
    parent_block_hash: Name | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_sliding_window: int | None = None

    @property
    def plain(self) -> bool:
        """Whether the blocks are where we know, and what they hold follows from the prompt's tokens and the adapter."""
        keys = any(key and key != [self.lora_name] for key in self.extra_keys or ())
        special = keys or (self.lora_id is not None and self.lora_name is None)
        return self.medium in (*DEVICE, *HOST) and not special and self.kv_cache_spec_sliding_window is None


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved", gc=False):
    """Blocks that are not on the medium any more."""

    block_hashes: list[Name]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared", gc=False):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    time: float
    events: list[msgspec.Raw]


_batch = msgspec.msgpack.Decoder(_Batch)
_event = msgspec.msgpack.Decoder(Event)
_kind = msgspec.msgpack.Decoder(_Kind)
_KNOWN = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


def events(payload: bytes) -> list[Event]:
    """The events of a batch that are known here. Raises msgspec.DecodeError for what is no batch."""
    return [_event.decode(raw) for raw in _batch.decode(payload).events if _kind.decode(raw).type in _KNOWN]
