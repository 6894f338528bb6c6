"""Where a request goes when the link to its instance has failed."""

import asyncio
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.message.errors import Overloaded
from dynamod.migration.moves import LINKS_PAUSE_S, LINKS_WAIT_S, Tried
from dynamod.migration.stages import Ask


@virtual
async def test_other_nodes_come_first(words: Any) -> None:
    """Then the neighbours, whose node may be there, and at last those to which the link has failed."""
    air = words.Air(instances=4, limit=5)
    nodes = {1: "one", 2: "one", 3: "two", 4: "one"}
    air.instances = [msgspec.structs.replace(one, node=nodes[one.instance_id]) for one in air.instances]
    await air.start()
    for _ in range(5):
        air.last.lose_link()
        await air.settle()
    tried = [send.instance.instance_id for send in air.sends]
    assert tried[:4] == [1, 3, 2, 4], "one link per node first, then each of the others once"
    air.last.tokens(1, 0, finish="eos")
    await air.settle()
    assert air.client.answer == "a"


def test_those_that_are_there_again() -> None:
    tried, there = Tried(), {1, 2, 3}
    ids = tried.ids

    def available() -> bool:
        return bool(there - ids)

    tried.add(1)
    tried.link_lost(1, [1, 2])
    tried.reconsider(available)
    assert ids == {1, 2}, "the third one is on another node"
    tried.add(3)
    tried.reconsider(available)
    assert ids == {1, 3}, "the neighbour was never tried"
    tried.add(2)
    tried.reconsider(available)
    assert ids == {2, 3}, "only the link to the first has failed; the others have failed the request"
    tried.forget(3)
    assert ids is tried.ids == {2}


@virtual
async def test_a_busy_node_keeps_no_request_from_a_neighbour() -> None:
    tried, asked = Tried(), list[set[int]]()

    async def place(ask: Ask) -> Any:
        asked.append({*ask.exclude})
        if 2 in ask.exclude:  # the neighbour is avoided, and the other node is busy
            await asyncio.sleep(3600)
        return "a place"

    tried.add(1)
    tried.link_lost(1, [2])
    assert await tried.placed(place, 0) == "a place"
    assert asked == [{1, 2}, {1}]


@virtual
async def test_a_refusal_of_the_other_nodes_is_none_by_a_neighbour() -> None:
    tried, asked = Tried(), list[set[int]]()

    async def place(ask: Ask) -> Any:
        asked.append({*ask.exclude})
        raise Overloaded("all are busy")

    tried.link_lost(1, [2])
    with pytest.raises(Overloaded):
        await tried.placed(place, 0)
    assert asked == [{2}, set()]


async def _begin(air: Any) -> None:
    """One token of the answer is out."""
    send = await air.start()
    send.accept()
    send.tokens(1)


@virtual
@pytest.mark.parametrize("instances", [1, 2])
async def test_an_answer_that_has_begun_waits_while_the_links_to_all_instances_fail(words: Any, instances: int) -> None:
    """As while a broker restarts. Requests of which nothing is out are refused at once, as before."""
    air = words.Air(instances=instances, limit=2)
    await _begin(air)
    for _ in range(8):
        air.last.lose_link()
        await asyncio.sleep(0.5)
    assert len(air.sends) == 9
    assert air.last.prior == [1]
    air.last.accept()
    air.last.tokens(2, 0, finish="eos")
    await air.settle()
    assert air.client.answer == "ab"


@virtual
async def test_it_waits_for_links_for_some_seconds(words: Any) -> None:
    air = words.Air(instances=2, limit=2)
    await _begin(air)
    begun = asyncio.get_running_loop().time()
    while not air.client.over:
        air.last.lose_link()
        await asyncio.sleep(0.3)
    assert "tries" in str(air.error)
    assert LINKS_WAIT_S < asyncio.get_running_loop().time() - begun < LINKS_WAIT_S + 2


@virtual
async def test_pauses_come_once_all_instances_were_asked(words: Any) -> None:
    air = words.Air(instances=3, limit=2)
    await _begin(air)
    for _ in range(3):
        air.last.lose_link()
        await air.settle()
    assert [one.instance.instance_id for one in air.sends] == [1, 2, 3], "the first is asked again after a pause"
    await asyncio.sleep(LINKS_PAUSE_S)
    assert len(air.sends) == 4
    air.inflight.cancel()
    await air.settle()
