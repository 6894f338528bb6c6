"""Requests whose worker crashed, tried again one at a time and alone; in virtual time."""

import asyncio
from typing import Any

import pytest

from dynamod.actor.testing import virtual
from dynamod.ingress.isolation import RetryBudget
from dynamod.message.errors import Internal, Overloaded
from dynamod.router.placement import Placement
from dynamod.router.router import Prompt, Router

from .test_dispatcher import Desk, desk, settled


async def gathered() -> None:
    await asyncio.sleep(0.02)
    await settled()


def suspect(made: Desk, group: asyncio.TaskGroup, name: str, received: int = 0, **more: Any) -> asyncio.Task[Placement]:
    return group.create_task(made.acquire(name, alone=True, received=received, again=True, **more))


@virtual
async def test_suspects_are_tried_one_at_a_time_and_the_most_suspicious_one_first() -> None:
    async with desk(2) as (made, group):
        tasks = {name: suspect(made, group, name, received) for name, received in (("a", 5), ("b", 0), ("c", 0))}
        await gathered()
        assert [name for name, task in tasks.items() if task.done()] == ["c"]
        first = await tasks["c"]
        assert first.alone
        with await made.acquire("another") as other:
            assert other.instance is not first.instance
        first.prefill_completed()
        first.passed()
        await settled()
        second = await tasks["b"]
        assert second.instance is first.instance, "the worker that is empty anyway"
        assert not first.alone
        second.release()
        await settled()
        (await tasks["a"]).release()
        first.release()
        await settled()
        with await made.acquire("x") as one, await made.acquire("y") as two:
            assert one.instance is not two.instance, "the worker takes others again"
        assert made.load == 0


@virtual
async def test_all_others_leave_the_worker_first_and_wait_for_it_where_there_is_no_other() -> None:
    left: list[str] = []
    async with desk(1) as (made, group):
        there = await made.acquire("there")
        there.prefill_completed()

        def leave() -> bool:
            left.append("there")
            there.release()
            return True

        there.leave = leave
        trial = suspect(made, group, "s")
        await gathered()
        assert left == ["there"]
        assert not (await trial).shared
        back, new = group.create_task(made.acquire("there", again=True)), group.create_task(made.acquire("new"))
        await settled()
        assert (made.waiting, back.done(), new.done()) == (2, False, False)
        (await trial).prefill_completed()
        (await trial).passed()
        (await trial).release()
        await settled()
        (await back).release()
        (await new).release()


@virtual
async def test_one_that_cannot_leave_is_company() -> None:
    async with desk(1) as (made, group):
        there = await made.acquire("there")
        there.prefill_completed()
        trial = suspect(made, group, "s")
        await gathered()
        assert (await trial).shared
        (await trial).release()
        there.release()


@virtual
async def test_when_one_is_guilty_the_others_go_on_at_once() -> None:
    async with desk(3) as (made, group):
        tasks = [suspect(made, group, name, exclude={1}) for name in "abc"]
        await gathered()
        (trial,) = [await task for task in tasks if task.done()]
        trial.guilty = True
        trial.release()
        await settled()
        placed = [await task for task in tasks]
        assert [one.alone for one in placed if one is not trial] == [False, False]
        for one in placed:
            one.release()
        assert made.load == 0


@virtual
async def test_a_suspect_that_leaves_and_one_without_an_instance_keep_nobody_waiting() -> None:
    async with desk(1) as (made, group):
        lost = asyncio.gather(made.acquire("lost", {1}, alone=True), return_exceptions=True)
        gone, last = suspect(made, group, "gone"), suspect(made, group, "last", received=1)
        await settled()
        gone.cancel()
        await gathered()
        assert isinstance((await lost)[0], Overloaded)
        (await last).release()
        assert made.load == 0


@virtual
async def test_trials_keep_to_their_budget() -> None:
    now = [0.0]
    budget = RetryBudget(lambda: now[0], rate=2.0, share=0.5, burst=3.0)
    for _ in range(3):
        assert budget.wait() == 0
        budget.spend()
    assert budget.wait() == pytest.approx(0.5)
    budget.requests = 2
    assert budget.wait() == 0
    budget.spend()
    now[0] = 100.0
    budget.requests = 1000
    assert budget.wait() == 0
    for _ in range(3):
        budget.spend()
    assert budget.wait() > 0, "what was not spent is not kept beyond the burst"


@virtual
async def test_more_suspects_than_the_budget_allows_are_tried_later() -> None:
    async with desk(2) as (made, group):
        tasks = [suspect(made, group, f"s{number}") for number in range(12)]

        async def tried(seconds: float) -> int:
            for _ in range(round(seconds * 100)):
                await asyncio.sleep(0.01)
                for task in tasks:
                    if task.done():
                        task.result().release()
            return sum(task.done() for task in tasks)

        assert await tried(0.2) == 10
        assert await tried(1.0) == 12


@virtual
async def test_a_bug_in_a_decision_is_the_error_of_the_suspect_and_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = Router.decide

    def broken(self: Router, prompt: Prompt, *rest: Any) -> Any:
        return 1 / 0 if prompt.request == "bad" else decide(self, prompt, *rest)

    monkeypatch.setattr(Router, "decide", broken)
    async with desk(1) as (made, group):
        bad = asyncio.gather(made.acquire("bad", alone=True), return_exceptions=True)
        good = suspect(made, group, "good", received=1)
        await gathered()
        assert isinstance((await bad)[0], Internal)
        (await good).release()
        assert made.load == 0


@virtual
async def test_nothing_is_left_when_all_trials_are_over() -> None:
    async with desk(1) as (made, group):
        trial = suspect(made, group, "s")
        await gathered()
        (await trial).release()
        await settled()
        with await made.acquire("another"):
            pass
        await settled()
        assert made.actor._isolations == {}


@virtual
async def test_two_ingresses_seldom_try_their_suspects_on_the_same_worker() -> None:
    """Each would take the other's suspect for innocent company, and its own for the cause."""
    async with desk(8) as (made, group):
        chosen: set[int] = set()
        for number in range(8):
            task = suspect(made, group, f"r{number}")
            await gathered()
            with await task as placement:
                chosen.add(placement.instance.instance_id)
            await settled()
        assert len(chosen) > 3
