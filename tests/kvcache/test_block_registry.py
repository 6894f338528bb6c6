"""Blocks under an engine's own names, as events for routers."""

import pytest

from dynamod.kvcache.block_registry import BlockRegistry
from dynamod.kvcache.hashes import block_hashes, local_hashes
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.kv_events import Removed, Snapshot, Stored, WorkerEvent

IDS = list(range(100, 140))
LOCAL = local_hashes(tokens.pack(IDS), 16)


def test_blocks_with_several_names_are_counted() -> None:
    registry, published = BlockRegistry("a.b"), list[WorkerEvent]()

    publish = published.append
    registry.serve("m", 16, publish)
    assert registry.snapshot() == ()
    assert registry.footprint(tokens.pack(IDS)) is None
    registry.publish(16)
    blocks = block_hashes(tokens.pack(IDS), 16)
    registry.stored(None, [1, 2], LOCAL)
    registry.stored(None, [3], LOCAL[:1])
    assert registry.footprint(tokens.pack(IDS)) == (tuple(blocks), 8)
    registry.removed([1])
    assert registry.footprint(tokens.pack(IDS)) == (tuple(blocks), 8), "it has another name"
    registry.removed([3, 3])
    assert registry.footprint(tokens.pack(IDS)) == (tuple(blocks), 40), "a gap at the start"
    assert registry.snapshot() == (Snapshot((2,), (blocks[1],)),)
    assert published == [
        Snapshot((), ()),
        Stored(None, (1, 2), tuple(LOCAL)),
        Stored(None, (3,), (LOCAL[0],)),
        Removed((1,)),
        Removed((3,)),
    ]
    registry.leave(publish)
    registry.removed([2])
    assert len(published) == 5


def test_blocks_behind_an_unknown_one_are_not_published(caplog: pytest.LogCaptureFixture) -> None:
    registry, published = BlockRegistry("a.b"), list[WorkerEvent]()
    registry.serve("m", 16, published.append)
    registry.publish(16)
    registry.stored(7, [1, 2], LOCAL)
    assert published == [Snapshot((), ())]
    assert "their parent block 7 is not known" in caplog.text


def test_all_of_a_component_have_blocks_of_one_size() -> None:
    registry = BlockRegistry("a.b")
    registry.serve("m", 16, lambda _event: None)
    with pytest.raises(UserError, match=r"publishes blocks of 32 tokens, model 'm' has 16"):
        registry.publish(32)
    registry.publish(16)
    with pytest.raises(UserError, match="publishes blocks of 16 tokens already, not 32"):
        registry.publish(32)
    with pytest.raises(UserError, match=r"publishes blocks of 16 tokens, model 'n' has 8"):
        registry.serve("n", 8, lambda _event: None)
