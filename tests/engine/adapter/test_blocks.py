"""Blocks that an engine names itself, as routers see them."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynamod.engine.adapter.blocks import EngineBlocks
from dynamod.engine.adapter.wire import AllBlocksCleared, BlockRemoved, BlockStored, Event, events
from dynamod.kvcache.hashes import block_hashes, local_hashes
from dynamod.message import tokens
from dynamod.message.kv_events import Removed, Stored, TierEvent, TierRemoved, TierStored

SIZE = 4


def ids(*blocks: int) -> list[int]:
    """Tokens of blocks by number."""
    return [block * 10 + place for block in blocks for place in range(SIZE)]


def names(*blocks: int) -> list[int]:
    return block_hashes(tokens.pack(ids(*blocks)), SIZE)


def stored(parent: Any, named: list[Any], *blocks: int, **fields: Any) -> BlockStored:
    return BlockStored(named, parent, ids(*blocks), SIZE, **fields)


class Router:
    """What a router knows after all events."""

    def __init__(self) -> None:
        self.events: list[Stored | Removed] = []
        self.blocks: set[int] = set()

    def take(self, event: Stored | Removed | TierEvent) -> None:
        assert isinstance(event, Stored | Removed)
        self.events.append(event)
        if isinstance(event, Stored):
            assert not self.blocks & set(event.blocks), "announced twice"
            self.blocks |= set(event.blocks)
        else:
            assert set(event.blocks) <= self.blocks, "removed what was not there"
            self.blocks -= set(event.blocks)


def test_names_and_parents_become_hashes() -> None:
    router = Router()
    blocks = EngineBlocks(SIZE, router.take)
    blocks.apply(0, stored(None, [-7, b"x"], 1, 2, medium="GPU"))
    blocks.apply(0, stored(b"x", [5], 3, group_idx=None))
    first, second, third = names(1, 2, 3)
    local = local_hashes(tokens.pack(ids(1, 2, 3)), SIZE)
    assert router.events == [Stored(None, (first, second), tuple(local[:2])), Stored(second, (third,), (local[2],))]
    assert blocks.names == (first, second, third)
    assert blocks.uncached(names(1, 2, 3), 14) == 2
    assert blocks.uncached(names(1, 2, 3), 12) == 1
    assert blocks.uncached(names(1, 9, 3), 14) == 10
    blocks.apply(0, BlockRemoved([5, -7], "GPU"))
    assert router.events[-1] == Removed((third, first))


def test_a_block_that_is_stored_twice_is_removed_twice() -> None:
    router = Router()
    blocks = EngineBlocks(SIZE, router.take)
    blocks.apply(0, stored(None, [1, 2], 1, 2))
    blocks.apply(0, stored(None, [1, 2, 3], 1, 2, 3))
    assert router.events[-1] == Stored(names(1, 2)[1], (names(1, 2, 3)[2],), (local_hashes(tokens.pack(ids(3)), 4)[0],))
    blocks.apply(0, BlockRemoved([1, 2]))
    assert router.blocks == set(names(1, 2, 3))
    blocks.apply(0, BlockRemoved([1, 2]))
    assert router.blocks == {names(1, 2, 3)[2]}


def test_a_block_is_there_as_long_as_one_rank_has_it() -> None:
    router = Router()
    blocks = EngineBlocks(SIZE, router.take)
    blocks.apply(0, stored(None, [1], 1))
    blocks.apply(1, stored(None, [77], 1))
    blocks.apply(0, AllBlocksCleared())
    assert router.blocks == set(names(1))
    blocks.forget(1)
    assert router.blocks == set()
    blocks.forget(1)
    assert len(router.events) == 2


def test_what_is_no_prefix_of_a_prompt_is_left_out() -> None:
    router = Router()
    blocks = EngineBlocks(SIZE, router.take)
    blocks.apply(0, stored(None, [1], 1, lora_id=3))
    blocks.apply(0, stored(None, [1], 1, medium="STORAGE"))
    blocks.apply(0, stored(None, [1], 1, extra_keys=[("image", 0)]))
    blocks.apply(0, stored(None, [1], 1, group_idx=1, kv_cache_spec_sliding_window=128))
    blocks.apply(0, stored(99, [1], 1))
    blocks.apply(0, BlockStored([1], None, [1, 2], 2))
    blocks.apply(0, BlockRemoved([1, 2]))
    blocks.apply(0, BlockStored([1], None, [], 0, medium="CPU"))
    assert not router.events
    blocks.apply(0, stored(None, [1], 1, extra_keys=[None], group_idx=0))
    blocks.apply(0, BlockRemoved([1], "CPU", 0))
    blocks.apply(0, BlockRemoved([1], "GPU", 1))
    assert router.blocks == set(names(1))


def test_blocks_of_an_adapter_are_salted_with_its_name() -> None:
    router = Router()
    blocks = EngineBlocks(SIZE, router.take)
    blocks.apply(0, stored(None, [1, 2], 1, 2))
    blocks.apply(0, stored(None, [11, 12], 1, 2, lora_id=1, lora_name="abc", extra_keys=[["abc"], ["abc"]]))
    blocks.apply(0, stored(None, [21], 1, lora_id=1, lora_name="abc", extra_keys=[["abc", "image"]]))
    salted = block_hashes(tokens.pack([*ids(1), *ids(2)]), SIZE, "abc")
    assert router.blocks == {*names(1, 2), *salted}
    assert len(router.blocks) == 4
    assert blocks.uncached(salted, 8) == 1
    blocks.apply(0, BlockRemoved([11, 12]))
    assert router.blocks == set(names(1, 2))


def test_blocks_in_memory_of_the_host_are_a_tier() -> None:
    told: list[Any] = []
    blocks = EngineBlocks(SIZE, told.append)
    first, second, third = names(1, 2, 3)
    blocks.apply(0, stored(None, [1, 2], 1, 2, medium="GPU"))
    blocks.apply(0, stored(1, [2], 2, medium="CPU"))
    blocks.apply(0, stored(None, [1], 1, medium="CPU_PINNED"))
    blocks.apply(1, stored(None, [1], 1, medium="CPU"))
    blocks.apply(0, BlockRemoved([1, 2], "GPU"))
    blocks.apply(0, stored(2, [3], 3, medium="CPU"))
    assert told[1:] == [
        TierStored("CPU_PINNED", (second,)),
        TierStored("CPU_PINNED", (first,)),
        Removed((first, second)),
        TierStored("CPU_PINNED", (third,)),
    ]
    assert (blocks.names, set(blocks.host.names)) == ((), {first, second, third})
    assert blocks.uncached([first, second, third], 14) == 2, "loaded, not computed"
    blocks.apply(0, BlockRemoved([1, 2], "CPU"))
    assert told[-1] == TierRemoved("CPU_PINNED", (second,)), "the other rank has the first"
    assert (blocks.host.came, blocks.host.went) == (3, 1)
    blocks.forget(0)
    blocks.forget(1)
    assert told[-2:] == [TierRemoved("CPU_PINNED", (third,)), TierRemoved("CPU_PINNED", (first,))]


_EVENTS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from("+-c"), st.integers(1, 3), st.integers(1, 3)), max_size=40
)


@given(_EVENTS)
def test_routers_know_what_is_there(steps: list[tuple[int, str, int, int]]) -> None:
    """Against plain counts: a prompt is a block and one behind it, each stored and removed as often as it comes."""
    router, held = Router(), Counter[tuple[int, int]]()
    blocks = EngineBlocks(SIZE, router.take)
    for rank, what, first, second in steps:
        prompt = names(first, second)
        engine = [hash((first,)), hash((first, second))]
        if what == "+":
            blocks.apply(rank, stored(None, engine, first, second))
            held.update((rank, block) for block in prompt)
        elif what == "-":
            blocks.apply(rank, BlockRemoved([engine[1], engine[0], 12345]))
            held.subtract((rank, block) for block in prompt if held[rank, block])
        else:
            blocks.apply(rank, AllBlocksCleared())
            for key in [key for key in held if key[0] == rank]:
                del held[key]
        there = {block for (_, block), count in held.items() if count > 0}
        assert router.blocks == set(blocks.names) == there


def test_a_batch_as_vllm_sends_it() -> None:
    sent: list[Any] = [
        {"type": "BlockStored", "block_hashes": [2203770589448781557], "parent_block_hash": None}
        | {"token_ids": ids(1), "block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None}
        | {"extra_keys": [None], "group_idx": 0, "kv_cache_spec_kind": "full_attention"},
        {"type": "BlockMoved", "anything": 1},
        {"type": "BlockRemoved", "block_hashes": [-5], "medium": "GPU", "group_idx": 0},
        {"type": "AllBlocksCleared"},
    ]
    found: list[Event] = events(msgspec.msgpack.encode([1795204157.91, sent, 0]))
    assert [type(event) for event in found] == [BlockStored, BlockRemoved, AllBlocksCleared]
    assert isinstance(found[0], BlockStored)
    assert found[0].plain
