"""Requests whose worker crashed, tried again one at a time and alone; in virtual time."""

import asyncio
from typing import Any

import pytest

from dynamod.actor.testing import virtual
from dynamod.features.isolation.trials import KEPT_S, MAX_KEPT, ONLY_QUIET_WAIT_S, QUIET_WAIT_S, RetryBudget
from dynamod.message.errors import Internal, Overloaded
from dynamod.message.kv_events import RequestStarted
from dynamod.router.placement import Placement
from dynamod.router.router import Prompt, Router
from tests.ingress.test_dispatcher import Desk, desk, settled


async def gathered() -> None:
    await asyncio.sleep(0.02)
    await settled()


def suspect(made: Desk, group: asyncio.TaskGroup, name: str, received: int = 0, **more: Any) -> asyncio.Task[Placement]:
    return group.create_task(made.acquire(name, alone=True, received=received, again=True, **more))


async def stays(made: Desk, count: int) -> list[Placement]:
    """Places of requests that answer and cannot move."""
    found: list[Placement] = []
    for number in range(count):
        found.append(await made.acquire(f"stays {number}"))
        found[-1].prefill_completed()
    return found


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
        first.stays = lambda: False
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

        there.leave, there.stays = leave, lambda: False
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
async def test_a_trial_knows_the_requests_that_left_before_the_worker_had_a_place_for_it() -> None:
    """A worker that turns out to hang before the trial begins hangs in a step of these requests."""
    async with desk(1) as (made, group):
        there = await made.acquire("there")

        def leave() -> bool:
            asyncio.get_running_loop().call_later(0.03, there.release)
            there.leave, there.stays = (lambda: False), (lambda: True)
            return True

        there.leave, there.stays = leave, lambda: False
        trial = suspect(made, group, "s")
        await gathered()
        assert not trial.done(), "the load of the other one counts until its place is given back"
        with await trial as place:
            assert (place.made_room, place.shared) == ([there], False)
            place.prefill_completed()
            place.passed()
        with await suspect(made, group, "next") as place:
            assert place.made_room == []


@virtual
async def test_a_trial_goes_where_no_stream_stays() -> None:
    async with desk(3) as (made, group):
        await stays(made, 2)
        (free,) = {1, 2, 3} - {one for one in (1, 2, 3) if made.actor.routers["m", ""].state.active.of(one).requests}
        with await suspect(made, group, "s") as trial:
            assert (trial.instance.instance_id, trial.shared) == (free, False)


@virtual
async def test_a_trial_goes_where_no_other_ingress_has_streams() -> None:
    """They would share the crash. The worker of the trial before is no better if they are there now."""
    async with desk(3) as (made, group):
        with await suspect(made, group, "first") as first:
            ((key, router),) = made.actor.routers.items()
            used, busy, idle = first.instance.instance_id, *(router.workers - {first.instance.instance_id})
            for number, worker in enumerate((used, used, busy, busy)):
                made.actor._events((key, worker), [RequestStarted(number, (), 0)], False)
            for _ in range(3):
                own = Placement(first.instance, first.decision, router, lambda: None)
                router.state.active.start(own, idle, (), 0, 0.0)
                own.stays, own.leave = (lambda: False), (lambda own=own: own.release() or True)
            second = suspect(made, group, "second")
            first.passed()
            await gathered()
            with await second as place:
                assert place.instance.instance_id == idle


@virtual
async def test_a_trial_waits_for_a_worker_without_streams_that_stay() -> None:
    async with desk(2) as (made, group):
        there = await stays(made, 4)
        trial = suspect(made, group, "s")
        await asyncio.sleep(20.0)
        assert not trial.done()
        reserved = made.actor.reserved(("m", ""))
        with await made.acquire("new") as new:
            assert new.instance.instance_id != reserved, "the worker gets no others meanwhile"
        for one in there:
            if one.instance.instance_id == reserved:
                one.release()
        await asyncio.sleep(0.1)
        assert ((await trial).instance.instance_id, (await trial).shared) == (reserved, False)
        (await trial).release()
        for one in there:
            one.release()
        await settled()
        assert made.load == 0


@pytest.mark.parametrize(("workers", "limit"), [(1, ONLY_QUIET_WAIT_S), (2, QUIET_WAIT_S)])
@virtual
async def test_a_trial_is_refused_where_streams_stay_too_long(workers: int, limit: float) -> None:
    """It would cost these streams a second worker, and convict no request."""
    async with desk(workers) as (made, _group):
        there = await stays(made, workers)
        trial = asyncio.gather(made.acquire("s", alone=True, again=True), return_exceptions=True)
        await asyncio.sleep(limit - 1.0)
        assert not trial.done()
        await asyncio.sleep(2.0)
        (error,) = await trial
        assert isinstance(error, Overloaded)
        assert error.retry_after == limit
        assert made.actor.reserved(("m", "")) is None
        for one in there:
            one.release()


@virtual
async def test_an_answer_that_has_begun_is_tried_beside_streams_that_stay_too_long() -> None:
    async with desk(1) as (made, group):
        (there,) = await stays(made, 1)
        trial = suspect(made, group, "s", received=5)
        await asyncio.sleep(ONLY_QUIET_WAIT_S + 1.0)
        assert (await trial).shared
        (await trial).release()
        there.release()


@virtual
async def test_when_one_is_guilty_those_with_an_answer_go_on_and_the_others_are_tried_alone() -> None:
    async with desk(3) as (made, group):
        tasks = [suspect(made, group, name, received, exclude={1}) for name, received in (("a", 3), ("b", 0), ("c", 0))]
        await gathered()
        (trial,) = [await task for task in tasks if task.done()]
        trial.guilty = True
        trial.release()
        await gathered()
        answering, trial, _ = [await task for task in tasks]
        assert (answering.alone, trial.alone) == (False, True)
        assert answering.instance is not trial.instance
        trial.release()
        answering.release()
        await settled()
        assert made.load == 0


async def convicted_first(made: Desk, group: asyncio.TaskGroup, others: int) -> list[asyncio.Task[Placement]]:
    """Suspects without an answer, of which the first that is tried is guilty; the tasks of the others."""
    tasks = [suspect(made, group, f"s{number}") for number in range(1 + others)]
    await gathered()
    (first,) = [task for task in tasks if task.done()]
    (await first).guilty = True
    (await first).release()
    await gathered()
    return [task for task in tasks if task is not first]


@virtual
async def test_when_one_is_guilty_all_others_without_an_answer_are_tried_alone() -> None:
    """Any of them may be a second cause."""
    async with desk(4) as (made, group):
        others = await convicted_first(made, group, 2 * MAX_KEPT)
        tried = set[asyncio.Task[Placement]]()
        for _ in range(round(KEPT_S * 10)):
            for task in others:
                if task.done() and task not in tried:
                    assert task.result().alone
                    tried.add(task)
                    task.result().release()
            await asyncio.sleep(0.1)
        assert len(tried) == len(others)
        assert made.load == 0


@virtual
async def test_those_for_whose_trial_the_time_is_too_short_go_on_as_usual() -> None:
    async with desk(4) as (made, group):
        others = await convicted_first(made, group, MAX_KEPT + 3)
        tried = 0
        while any(not task.done() for task in others):
            (trial,) = [place for task in others if task.done() and (place := task.result()).alone]
            tried += 1
            await asyncio.sleep(2 * KEPT_S / MAX_KEPT)
            trial.release()
            await gathered()
        assert tried == MAX_KEPT
        assert made.load == 3
        for task in others:
            task.result().release()


@virtual
async def test_a_conviction_clears_those_for_whose_trial_the_time_is_too_short() -> None:
    """The crash was that of the convicted request."""
    async with desk(4) as (made, group):
        others = await convicted_first(made, group, MAX_KEPT + 3)
        while any(not task.done() for task in others):
            (trial,) = [place for task in others if task.done() and (place := task.result()).alone]
            await asyncio.sleep(2 * KEPT_S / MAX_KEPT)
            trial.release()
            await gathered()
        assert not any(task.result().untried for task in others)
        for task in others:
            task.result().release()


@virtual
async def test_suspects_of_a_crash_behind_a_conviction_are_tried_whatever_time_that_takes() -> None:
    async with desk(4) as (made, group):
        (other,) = await convicted_first(made, group, 1)
        later = suspect(made, group, "later")
        await asyncio.sleep(2 * KEPT_S)
        assert not later.done()
        (await other).release()
        await gathered()
        assert (await later).alone
        (await later).release()


@virtual
async def test_thousands_of_suspects_do_not_wait_for_a_trial_each() -> None:
    """A worker that stopped for a moment had many requests, and none of them is guilty."""
    async with desk(4) as (made, group):
        tasks = [suspect(made, group, f"s{number}") for number in range(2000)]
        begun, alone, done = asyncio.get_running_loop().time(), 0, set[asyncio.Task[Placement]]()
        while len(done) < len(tasks):
            await asyncio.sleep(0.01)
            for task in [one for one in tasks if one.done() and one not in done]:
                place = task.result()
                assert place.untried is not place.alone
                alone += place.alone
                done.add(task)
                place.release()
        assert asyncio.get_running_loop().time() - begun < KEPT_S + 15.0
        assert MAX_KEPT < alone < 100
        assert made.load == 0


@virtual
async def test_suspects_wait_for_the_last_worker_which_crashed_with_another_one() -> None:
    async with desk(1) as (made, group):
        trial, waits = suspect(made, group, "guilty"), suspect(made, group, "waits", received=1)
        await gathered()
        (await trial).guilty = True
        made.go(1)
        (await trial).release()
        await asyncio.sleep(1.0)
        assert not waits.done()
        made.come(1)
        await asyncio.sleep(0.1)
        (await waits).release()
        assert made.load == 0


@virtual
async def test_a_suspect_waits_for_no_worker_that_stays_away() -> None:
    async with desk(1) as (made, group):
        trial = suspect(made, group, "tried")
        await gathered()
        waits = asyncio.gather(made.acquire("waits", alone=True, again=True), return_exceptions=True)
        made.go(1)
        (await trial).release()
        await asyncio.sleep(ONLY_QUIET_WAIT_S - 1.0)
        assert not waits.done()
        await asyncio.sleep(1.1)
        assert isinstance((await waits)[0], Overloaded)
        trials = made.actor.stages["isolation"]
        assert trials._isolations == {} or trials._isolations["m", ""].over


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
        assert made.actor.stages["isolation"]._isolations == {}


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
