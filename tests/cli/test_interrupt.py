"""Ctrl-C at the desk: it ends what can be interrupted, and nothing else."""

import asyncio

import pytest

from dynamod.cli.interrupt import Desk


async def test_the_first_one_ends_the_answer_and_the_next_one_is_not_taken() -> None:
    desk = Desk()
    assert not desk.interrupt(), "nothing to interrupt"
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: taken.append(desk.interrupt()))
    loop.call_soon(lambda: taken.append(desk.interrupt()))
    taken: list[bool] = []
    with pytest.raises(Desk.Interrupted):
        async with desk.interruptible():
            await asyncio.sleep(60)
    assert taken == [True, False]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert not desk.interrupt()
    async with desk.interruptible():
        await asyncio.sleep(0)


async def test_the_end_of_the_command_is_no_interruption() -> None:
    desk = Desk()

    async def body() -> None:
        async with desk.interruptible():
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(body(), 0.01)
