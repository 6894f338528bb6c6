"""Where a request goes when the link to its instance has failed."""

from typing import Any

import msgspec

from dynamod.actor.testing import virtual
from dynamod.migration.tried import Tried


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
