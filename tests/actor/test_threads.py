"""The last work of a thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dynamod.actor.threads import last_work


async def test_it_is_done_behind_the_others() -> None:
    thread, done = ThreadPoolExecutor(1), list[int]()
    thread.submit(done.append, 1)
    assert await last_work(thread, lambda: done.append(2), 10)
    assert done == [1, 2]
    with pytest.raises(RuntimeError, match="after shutdown"):
        thread.submit(done.append, 3)


async def test_a_thread_that_hangs_is_left() -> None:
    thread, over, done = ThreadPoolExecutor(1), threading.Event(), list[int]()
    thread.submit(over.wait)
    assert not await last_work(thread, lambda: done.append(1), 0.05)
    assert not done
    over.set()


async def test_what_it_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await last_work(ThreadPoolExecutor(1), lambda: 1 / 0, 10)
