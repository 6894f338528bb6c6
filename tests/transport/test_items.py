"""Items that are awaited: each once and in order, and every kind of end is seen."""

import asyncio

import pytest

from dynamod.message.errors import EngineFailed, NotFound
from dynamod.message.ingress import Accepted, Failed, Items
from dynamod.transport.items import ItemStream


async def test_items_come_once_and_in_order() -> None:
    stream = ItemStream()
    reading = asyncio.get_running_loop().create_task(stream.read())
    await asyncio.sleep(0)
    stream.delta(Accepted(1))
    stream.delta(Items(1, 0, ("a", "b")))
    assert await reading == ["a", "b"]
    stream.delta(Items(1, 1, ("b", "c")))
    stream.delta(Items(1, 3, ("d",), "stop"))
    stream.delta(Items(1, 4, ("late",)))
    assert await stream.read() == ["c", "d"]
    assert await stream.read() == []


async def test_an_error_comes_behind_the_items() -> None:
    stream = ItemStream()
    stream.delta(Items(1, 0, ("a",)))
    stream.delta(Failed(1, "NotFound", "no such file"))
    stream.lost("and gone")
    assert await stream.read() == ["a"]
    with pytest.raises(NotFound, match="no such file"):
        await stream.read()


@pytest.mark.parametrize("gap", [True, False])
async def test_what_is_lost_is_an_error(gap: bool) -> None:
    stream = ItemStream()
    if gap:
        stream.delta(Items(1, 2, ("c",)))
        stream.delta(Items(1, 0, ("a",)))
    else:
        stream.lost("the connection broke")
    with pytest.raises(EngineFailed, match="missing" if gap else "the connection broke"):
        await stream.read()
