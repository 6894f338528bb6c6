"""Blocks that other workers have stored, as the ingress asks for them. Virtual time."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.features.tiers.choice import PeerDecision
from dynamod.features.tiers.dispatch import PeerCounts
from dynamod.features.tiers.peers import WAIT, PeerFetch, StoredBlocks
from dynamod.message.discovery import Capabilities, Instance, ModelCard
from dynamod.message.ingress import Failed, Items
from dynamod.message.worker import Generate, Handoff, Prefill

CARD = ModelCard("m", capabilities=Capabilities(handoff=True, stored_blocks=True))
REQUEST = Generate("r", "m", b"")
PEER = PeerDecision(True, "", 7, "", 90, 10, 1280.0, 600.0)
HANDOFF = Handoff("s", "l", {"tcp": "x"}, stored=True)


class Peers:
    """A worker that has blocks, and what stands between."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked: list[Any] = []
        self.sink: Any = None
        self.cancelled = 0
        self.there = {7: Instance("n", "c", "e", 7, {})}
        self.counts: dict[str, PeerCounts] = defaultdict(PeerCounts)
        self.fetch = PeerFetch(self, self, self.counts.__getitem__)  # type: ignore[arg-type]

    def served(self, *_: Any) -> Any:
        return self.there

    def open(self, instance: Instance, request: Any, sink: Any) -> Any:
        self.asked.append((instance.instance_id, request))
        self.sink = sink
        for answer in self.answers:
            sink.delta(answer)
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1

    async def begin(self, peer: PeerDecision | None = PEER) -> tuple[StoredBlocks | None, Any]:
        placement: Any = SimpleNamespace(decision=SimpleNamespace(notes={"peer": peer}), first_token=None)
        opening = self.fetch.open(CARD, REQUEST, placement)
        return None if opening is None else await opening, placement

    def counted(self) -> tuple[int, int, int]:
        counts = self.counts["m"]
        return counts.fetches, counts.blocks, counts.failed


def given(handoff: Handoff = HANDOFF) -> Items:
    return Items(1, 0, (msgspec.msgpack.encode(handoff),))


@virtual
async def test_the_worker_that_the_decision_names_is_asked_for_what_it_has() -> None:
    peers = Peers(given())
    blocks, placement = await peers.begin()
    assert blocks is not None
    with blocks:
        assert peers.asked == [(7, Prefill(REQUEST, stored=True))]
        assert blocks.handoff.result() == HANDOFF
        assert blocks.instance is None, "nobody is suspected of anything there"
        placement.first_token()
        assert peers.cancelled == 1, "what has not been read is needed no more"
    assert (peers.cancelled, peers.counted()) == (1, (1, 80, 0))


@virtual
async def test_blocks_that_have_been_read_are_not_cancelled() -> None:
    peers = Peers(given())
    blocks, _ = await peers.begin()
    assert blocks is not None
    with blocks:
        peers.sink.delta(Items(1, 1, (), "stop"))
    assert peers.cancelled == 0


@pytest.mark.parametrize(
    "peer", [None, msgspec.structs.replace(PEER, fetch=False), msgspec.structs.replace(PEER, instance=8)]
)
@virtual
async def test_nobody_is_asked(peer: Any) -> None:
    """Nobody has more, or it does not pay, or that worker leaves or is quarantined."""
    peers = Peers(given())
    assert (await peers.begin(peer))[0] is None
    assert (peers.asked, peers.counted()) == ([], (0, 0, 0))


@pytest.mark.parametrize(
    "answer", [Failed(1, "EngineFailed", "no"), Items(1, 0, (b"nonsense",)), Items(1, 0, (), "stop")]
)
@virtual
async def test_one_that_gives_nothing_is_counted_and_the_prompt_computed(answer: Any) -> None:
    peers = Peers(answer)
    assert (await peers.begin())[0] is None
    assert peers.counted() == (0, 0, 1)


@virtual
async def test_one_that_is_silent_is_not_waited_for() -> None:
    peers = Peers()
    begin = asyncio.get_running_loop().time()
    assert (await peers.begin())[0] is None
    assert asyncio.get_running_loop().time() - begin == pytest.approx(WAIT)
    assert (peers.cancelled, peers.counted()) == (1, (0, 0, 1))


@virtual
async def test_one_that_dies() -> None:
    peers = Peers()
    asyncio.get_running_loop().call_later(0.1, lambda: peers.sink.lost("it is gone"))
    assert (await peers.begin())[0] is None
    assert (peers.cancelled, peers.counted()) == (0, (0, 0, 1))
    dead = Peers(given())
    blocks, _ = await dead.begin()
    assert blocks is not None
    with blocks:
        blocks.watch(lambda _why: pytest.fail("nobody waits for it"))
        dead.sink.lost("it is gone, and its reader sees that by itself")
    assert dead.cancelled == 0


@virtual
async def test_a_request_that_ends_meanwhile() -> None:
    peers = Peers()
    task = asyncio.create_task(peers.begin())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), peers.cancelled, peers.counted()) == (True, 1, (0, 0, 0))
