"""MigrationCounts are counted, and wait for a place where all others are busy."""

import asyncio
from typing import Any

from dynamod.message.worker import LEAVING
from dynamod.migration.base import Limits

from .instances import virtual


@virtual
async def test_a_move_is_counted_with_the_time_until_it_is_taken(words: Any) -> None:
    air = words.Air()
    first = await air.start()
    first.accept()
    first.tokens(1, 2)
    first.lose()
    await air.settle()
    await asyncio.sleep(0.25)
    assert (air.broken, air.settlings) == ([True], [])
    air.last.lose()  # it dies as well, before it has taken anything
    await air.settle()
    await asyncio.sleep(0.25)
    air.last.accept()
    assert (air.broken, air.settlings) == ([True, True], [(0.5, True)])
    air.last.tokens(3, finish="length")
    assert (air.client.answer, air.completed, len(air.settlings)) == ("abc", 1, 1)


@virtual
async def test_a_move_that_nobody_takes_has_failed(words: Any) -> None:
    air = words.Air(instances=2)
    (await air.start()).lose()
    await air.settle()
    await asyncio.sleep(2)
    air.last.lose()
    await air.settle()
    assert air.error
    assert (air.broken, air.settlings) == ([False], [(2, False)])


@virtual
async def test_a_move_waits_while_all_others_are_busy(words: Any) -> None:
    air = words.Air(instances=2, busy={2}, patient=True)
    first = await air.start()
    first.accept()
    first.tokens(1)
    first.lose()
    await air.settle()
    assert (air.waiting, len(air.sends), air.inflight.over, air.inflight.instance) == (1, 1, False, None)
    air.free()
    await air.settle()
    assert air.last.prior == [1]
    air.last.accept()
    air.last.tokens(2, finish="stop")
    assert air.client.answer == "ab"
    assert not air.client.errors


@virtual
async def test_it_does_not_wait_for_ever(words: Any) -> None:
    air = words.Air(instances=2, busy={2}, patient=True)
    (await air.start()).lose()
    await air.settle()
    await asyncio.sleep(29)
    air.inflight.expire(Limits())
    await air.settle()
    assert not air.inflight.over
    await asyncio.sleep(1)
    await air.settle()
    assert "no instance took the request within 30 s: all are busy" in str(air.error)
    assert air.settlings == [(30, False)]


@virtual
async def test_without_a_place_to_wait_it_is_an_overload(words: Any) -> None:
    air = words.Air(instances=2, busy={2})
    (await air.start()).lose()
    await air.settle()
    assert air.error.retry_after
    assert air.settlings == [(0, False)]


@virtual
async def test_what_is_too_long_does_not_move(words: Any) -> None:
    short = words.Air(longest=4)  # the prompt has two tokens
    first = await short.start()
    first.accept()
    first.tokens(1, 2)
    first.lose()
    await short.settle()
    assert (len(short.sends), short.too_longs) == (2, 0)
    short.last.accept()
    short.last.tokens(3)
    short.last.lose()
    await short.settle()
    assert (len(short.sends), short.too_longs) == (2, 1)
    assert "longer than migration_max_seq_len" in str(short.error)
    assert short.client.answer == "abc"
    unsent = words.Air(longest=1)
    (await unsent.start()).lose()  # nothing of it has come: it is simply sent again
    await unsent.settle()
    assert (len(unsent.sends), unsent.too_longs) == (2, 0)


@virtual
async def test_instances_that_are_ending_do_not_use_up_the_limit(words: Any) -> None:
    air = words.Air(instances=7, limit=1)
    await air.start()
    for _ in range(4):
        air.last.fail("Overloaded", "the worker drains", retry=True, code=LEAVING)
        await air.settle()
    air.last.accept()
    air.last.tokens(1)
    air.last.lose()
    await air.settle()
    assert (len(air.sends), air.last.prior) == (6, [1])
    air.last.fail("Overloaded", "the mailbox is full", retry=True)
    await air.settle()
    assert (len(air.sends), str(air.client.errors[0])) == (6, "the mailbox is full, after 2 tries")
