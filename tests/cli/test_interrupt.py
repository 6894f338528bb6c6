"""Ctrl-C at the desk: it ends what can be interrupted, and nothing else."""

import asyncio

import pytest

from dynamod.cli.interrupt import Interrupts


async def test_the_first_one_ends_the_answer_and_the_next_one_is_not_taken() -> None:
    interrupts = Interrupts()
    assert not interrupts.interrupt(), "nothing to interrupt"
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: taken.append(interrupts.interrupt()))
    loop.call_soon(lambda: taken.append(interrupts.interrupt()))
    taken: list[bool] = []
    with pytest.raises(Interrupts.Interrupted):
        async with interrupts.interruptible():
            await asyncio.sleep(60)
    assert taken == [True, False]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert not interrupts.interrupt()
    async with interrupts.interruptible():
        await asyncio.sleep(0)


async def test_the_end_of_the_command_is_no_interruption() -> None:
    interrupts = Interrupts()

    async def body() -> None:
        async with interrupts.interruptible():
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(body(), 0.01)
