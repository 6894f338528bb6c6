"""Why a process has failed is read before its end is reported, also on a busy machine."""

import asyncio

from dynamod.daemon.process import TURNS, last_words


async def test_what_is_there_is_read_after_the_deadline() -> None:
    loop, closed, left = asyncio.get_running_loop(), asyncio.Event(), 10

    def turn() -> None:
        """The loop reads a state, and then the end of the connection, in some of its turns."""
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(turn)
        else:
            closed.set()

    loop.call_soon(turn)
    reader = asyncio.create_task(asyncio.sleep(3600))
    await last_words([reader], closed, seconds=0.0)
    assert closed.is_set()
    reader.cancel()


async def test_a_connection_that_stays_open_is_not_waited_for() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    reader = asyncio.create_task(count())
    await last_words([reader], asyncio.Event(), seconds=0.0)
    assert TURNS / 2 < turns < 2 * TURNS
    reader.cancel()
