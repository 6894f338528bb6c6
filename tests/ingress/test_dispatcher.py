"""Places are waited for in turn, held by one request at a time, and given back whatever happens to who asked."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.actor import System
from dynamod.actor.envelope import deadline_now
from dynamod.actor.testing import run, virtual
from dynamod.discovery.keys import card_key, instance_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.ingress.dispatcher import DecisionsOf, Dispatcher, ModelCounts, ModelGone, ModelServed
from dynamod.message.discovery import Adapter, Instance, ModelCard
from dynamod.message.errors import Internal, Overloaded
from dynamod.message.kv_events import PrefillCompleted, RequestStarted
from dynamod.router.placement import DispatcherClient, Placement
from dynamod.router.router import Prompt, Router, RouterSettings

CARD = ModelCard("m", "text", kv_cache_block_size=4)


class Desk:
    """A dispatcher with workers that publish nothing. A worker is busy while one of its requests has no first token."""

    def __init__(self, system: System, card: ModelCard = CARD, config: Any = None, **more: Any) -> None:
        self.card = card
        self.registry: Any = MemoryRegistry(random.Random(0))
        self.view = View(self.registry)
        transport: Any = SimpleNamespace(open=lambda *_: SimpleNamespace(cancel=lambda: None))
        routing = RouterSettings(**{"mode": "least-loaded", "busy_prefill": 0.0, "queue_size": 100, **more})
        self.actor = Dispatcher(self.view, transport, routing, defaultdict(ModelCounts), config=config)
        self.ref = system.start("dispatcher", lambda: self.actor, restart="temporary")
        self.client = DispatcherClient(self.ref, self.view)
        self.ref.send_nowait(ModelServed(card))
        self.leases: dict[int, int] = {}

    def come(self, number: int, pool: str = "") -> None:
        if number not in self.leases:
            lease = self.leases[number] = self.registry.grant()
            one = Instance("n", "c", "e", number, {}, pool=pool)
            self.registry.put(instance_key(one), msgspec.json.encode(one), lease)
            self.registry.put(card_key(one), msgspec.json.encode(self.card), lease)

    def go(self, number: int) -> None:
        lease = self.leases.pop(number, None)
        if lease is not None:
            self.registry.revoke(lease)

    async def acquire(self, name: str = "r", exclude: Any = (), *, session: str = "", **more: Any) -> Placement:
        return await self.client.acquire(CARD, Prompt(name, 9, session=session), exclude, **more)

    @property
    def waiting(self) -> int:
        return self.actor.waiting(("m", ""))

    @property
    def load(self) -> int:
        return sum(len(router.state.active) for router in self.actor.routers.values())


@asynccontextmanager
async def desk(workers: int = 1, **more: Any) -> AsyncIterator[tuple[Desk, asyncio.TaskGroup]]:
    async with System(seed=1) as system:
        made = Desk(system, **more)
        for number in range(1, workers + 1):
            made.come(number)
        await system.ready(made.ref, timeout=1)
        await settled()
        async with asyncio.TaskGroup() as group:
            yield made, group


async def settled() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


@virtual
async def test_places_are_given_by_priority_and_then_in_turn() -> None:
    order: list[str] = []
    async with desk() as (made, group):

        async def ask(name: str, priority: int) -> None:
            with await made.acquire(name, priority=priority):
                order.append(name)

        with await made.acquire("first"):
            for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)):
                group.create_task(ask(name, priority))
            await settled()
            assert (made.waiting, order) == (5, [])
        await settled()
        assert order == ["b", "d", "a", "c", "e"]
        assert (made.waiting, made.load) == (0, 0)


@virtual
async def test_a_bug_in_a_decision_is_the_error_of_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Router.decide

    def broken(self: Router, prompt: Prompt, *rest: Any) -> Any:
        return 1 / 0 if prompt.request == "bad" else decide(self, prompt, *rest)

    monkeypatch.setattr(Router, "decide", broken)
    async with desk() as (made, _):
        with pytest.raises(Internal, match="internal error"):
            await made.acquire("bad")
        (await made.acquire("good")).release()
        assert made.load == 0


@virtual
async def test_a_bug_in_a_decision_of_the_queue_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    decide, broken = Router.decide, set[str]()

    def failing(self: Router, prompt: Prompt, *rest: Any) -> Any:
        return 1 / 0 if prompt.request in broken else decide(self, prompt, *rest)

    monkeypatch.setattr(Router, "decide", failing)
    async with desk() as (made, group):
        with await made.acquire("first"):
            bad, good = group.create_task(error_of(made.acquire("bad"))), group.create_task(made.acquire("good"))
            await settled()
            broken.add("bad")
        await settled()
        assert isinstance(await bad, Internal)
        (await good).release()
        assert made.load == 0


async def error_of(work: Awaitable[object]) -> BaseException | None:
    try:
        await work
    except Internal as error:
        return error
    return None


@virtual
async def test_the_first_token_makes_room_too() -> None:
    async with desk() as (made, group):
        placement = await made.acquire("long")
        waiting = group.create_task(made.acquire("next"))
        await settled()
        assert not waiting.done()
        placement.prefill_completed()
        await settled()
        assert waiting.done()  # its turn came with the token, not with the end of the other
        assert waiting.result().instance == placement.instance
        assert made.load == 2


@virtual
async def test_the_first_token_of_another_ingress_makes_room_too() -> None:
    async with desk() as (made, group):
        await made.acquire("own")
        waiting = group.create_task(made.acquire("next"))
        await settled()
        ((key, router),) = made.actor.routers.items()
        (worker,) = router.workers
        (own,) = router.state.active.at(worker)
        made.actor._events((key, worker), [RequestStarted(1, (), 9)], False)
        router.prefill_completed(own)
        await settled()
        assert not waiting.done()
        made.actor._events((key, worker), [PrefillCompleted(1)], False)
        await settled()
        assert waiting.done()


@virtual
async def test_the_queue_is_bounded_but_not_for_who_has_begun() -> None:
    async with desk(2, queue_size=1) as (made, group):
        held = [await made.acquire("x") for _ in range(2)]
        waits = group.create_task(made.acquire("waits"))
        await settled()
        with pytest.raises(Overloaded, match="No instance of model 'm' can take the request") as caught:
            await made.acquire("too many")
        assert caught.value.retry_after
        with pytest.raises(Overloaded):
            await made.acquire("asks at once", (), waits=False)
        again = group.create_task(made.acquire("again", {held[0].instance.instance_id}, priority=1))
        await settled()
        assert made.waiting == 2
        held[1].release()
        await settled()
        assert (again.done(), waits.done()) == (True, False)
        waits.cancel()
        await settled()
        more = group.create_task(made.acquire("who left makes room"))
        await settled()
        assert made.waiting == 1
        held[0].release()
        assert (await more).instance.instance_id == held[0].instance.instance_id


@virtual
async def test_requests_wait_until_enough_workers_have_come() -> None:
    """Whatever the queue may hold; later, workers may go."""
    async with desk(1, queue_size=0, initial_workers=2, busy_prefill=None) as (made, group):
        waiting = [group.create_task(made.acquire(str(number))) for number in range(3)]
        await asyncio.sleep(5)
        assert (made.waiting, [one.done() for one in waiting]) == (3, [False] * 3)
        with pytest.raises(Overloaded):
            await made.acquire("late", timeout=1)
        made.come(2)
        assert {(await one).instance.instance_id for one in waiting} == {1, 2}
        made.go(2)
        await settled()
        assert (await made.acquire("more")).instance.instance_id == 1


@virtual
async def test_who_asks_for_an_instance_does_not_wait() -> None:
    async with desk(2) as (made, _):
        with await made.client.acquire(CARD, Prompt("r", 9, instance=2)) as placement:
            assert placement.instance.instance_id == 2
            with pytest.raises(Overloaded):
                await made.client.acquire(CARD, Prompt("r", 9, instance=2))
        assert made.client.available(CARD, Prompt("r", 9, instance=2), ())
        assert not made.client.available(CARD, Prompt("r", 9, instance=2), {2})
        assert made.client.available(CARD, Prompt("r", 9), {2})
        assert not made.client.available(CARD, Prompt("r", 9), {1, 2})


@virtual
async def test_a_wait_has_an_end() -> None:
    async with desk() as (made, _):
        placement = await made.acquire()
        with pytest.raises(Overloaded, match="no instance took the request within 30 s: all are busy") as caught:
            await made.acquire(timeout=30)
        assert caught.value.retry_after
        assert made.waiting == 0
        deadline_now.set(made.actor.context.now() + 1.0)
        with pytest.raises(Overloaded, match="no instance took the request"):
            await made.acquire()  # without a limit of its own, within the one of its caller
        deadline_now.set(None)
        placement.release()
        placement.release()
        assert made.load == 0


@pytest.mark.parametrize("turns", range(12))
def test_who_leaves_at_any_moment_leaves_nothing(turns: int) -> None:
    async def main() -> None:
        async with desk() as (made, group):
            placement = await made.acquire()
            waiting = group.create_task(made.acquire())
            await settled()
            placement.release()  # the one that waits gets its place within some turns of the loop
            for _ in range(turns):
                await asyncio.sleep(0)
            if waiting.done():
                (await waiting).release()
            waiting.cancel()
            await settled()
            assert (made.waiting, made.load) == (0, 0)
            (await made.acquire()).release()

    run(main())


@virtual
async def test_who_can_only_go_to_one_keeps_nobody_waiting() -> None:
    async with desk(3, mode="session-affinity") as (made, group):
        held = {(one := await made.acquire(session=name)).instance.instance_id: one for name in ("a",)}
        (home,) = held
        sticky = group.create_task(made.acquire(session="a", priority=9))
        others = [group.create_task(made.acquire()) for _ in range(2)]
        await settled()
        assert not sticky.done()
        assert {(await one).instance.instance_id for one in others} == {1, 2, 3} - {home}
        last = group.create_task(made.acquire(priority=9))
        await settled()
        assert made.waiting == 2
        held[home].release()
        await settled()
        assert (await sticky).instance.instance_id == home
        (await others[0]).release()
        assert (await last).instance == (await others[0]).instance


@virtual
async def test_pools_are_apart() -> None:
    async with desk(0) as (made, group):
        made.come(7, "prefill")
        made.come(8, "decode")
        with pytest.raises(Overloaded):
            await made.acquire(waits=False)
        assert not made.client.available(CARD, Prompt("r", 9), ())
        assert made.client.available(CARD, Prompt("r", 9), (), pool="prefill")
        for pool, number in (("prefill", 7), ("decode", 8)):
            with await made.acquire(pool=pool) as placement:
                assert placement.instance.instance_id == number
                waiting = group.create_task(made.acquire(pool=pool))
                await settled()
                assert made.actor.waiting(("m", pool)) == 1
            (await waiting).release()
        assert made.load == 0


@virtual
async def test_a_queue_outlives_the_models_absence_and_ends_with_the_dispatcher() -> None:
    async with desk() as (made, group):
        await made.acquire("holds it")
        waiting = group.create_task(made.acquire("waits"))
        await settled()
        made.go(1)
        made.ref.send_nowait(ModelGone("m"))
        await settled()
        assert made.waiting == 1
        made.ref.send_nowait(ModelServed(CARD))
        made.come(2)
        assert (await waiting).instance.instance_id == 2
        assert [one.chosen for one in await made.ref.ask(DecisionsOf("waits"), timeout=1)] == [2]
        again = asyncio.gather(made.acquire("again"), return_exceptions=True)
        await settled()
        await made.ref.system.root.stop_child("dispatcher")
        (error,) = await again
        assert isinstance(error, Overloaded)
        assert "the processor is not available" in str(error)
        with pytest.raises(Overloaded, match="the processor is not available"):
            await made.acquire()


what = st.one_of(
    st.tuples(st.just("ask"), st.integers(-1, 2), st.sets(st.integers(1, 4), max_size=2)),
    st.tuples(st.just("release"), st.integers(0, 9), st.none()),
    st.tuples(st.just("leave"), st.integers(0, 9), st.none()),
    st.tuples(st.just("computed"), st.integers(0, 9), st.none()),
    st.tuples(st.just("come"), st.integers(1, 4), st.none()),
    st.tuples(st.just("go"), st.integers(1, 4), st.none()),
)


@given(st.lists(st.tuples(what, st.integers(0, 4)), max_size=40))
def test_nothing_is_lost_and_nobody_waits_for_nothing(steps: Any) -> None:
    async def main() -> None:
        async with desk(2) as (made, group):
            asked: list[tuple[asyncio.Task[Placement], Any]] = []
            prefilling: set[Placement] = set()
            for (name, number, exclude), turns in steps:
                granted = [task for task, _ in asked if task.done() and not task.cancelled()]
                match name:
                    case "ask":
                        task = group.create_task(made.acquire("r", exclude, priority=number))
                        asked.append((task, exclude))
                    case "release" if granted:
                        granted[number % len(granted)].result().release()
                    case "computed" if granted:
                        granted[number % len(granted)].result().prefill_completed()
                    case "leave" if asked:
                        asked[number % len(asked)][0].cancel()
                    case "come":
                        made.come(number)
                    case "go":
                        made.go(number)
                for _ in range(turns):
                    await asyncio.sleep(0)
            await settled()
            prefilling = {task.result() for task, _ in asked if task.done() and not task.cancelled()}
            assert all(one.result().instance.instance_id not in tried for one, tried in asked if one in prefilling)
            active = made.actor.routers["m", ""].state.active
            for task, exclude in asked:
                if not task.done():  # those who wait have nobody that is free
                    free = [number for number in made.leases if number not in exclude and not active.of(number).prefill]
                    assert free == []
            for task, _ in asked:
                task.cancel()
            for placement in prefilling:
                placement.release()
            await settled()
            assert (made.waiting, made.load) == (0, 0)

    run(main())


@virtual
async def test_a_request_for_an_adapter_goes_to_those_that_have_it() -> None:
    async with desk(3, mode="round-robin", busy_prefill=None) as (made, _):
        adapted = msgspec.structs.replace(CARD, adapters=(Adapter("x", "/x", "aa"),))
        for number in (2, 3):
            one = Instance("n", "c", "e", number, {})
            made.registry.put(card_key(one), msgspec.json.encode(adapted), made.leases[number])
        card = made.view.card("x")
        assert card is not None
        asked = partial(made.client.acquire, card, Prompt("r", 9))
        found = [await asked() for _ in range(4)]
        assert sorted(one.instance.instance_id for one in found) == [2, 2, 3, 3], "in turn"
        assert found[0].decision.excluded == ((1, "lacks the adapter"),)
        assert {one.instance.instance_id for one in [await made.acquire() for _ in range(3)]} == {1, 2, 3}
        assert made.load == 7, "one router counts them all"
        assert (await asked({2})).instance.instance_id == 3
        assert not made.client.available(card, Prompt("r", 9), {2, 3})
        for there in made.actor.routers["m", ""].state.active.at(3):
            assert isinstance(there, Placement)
            there.stays = lambda: False
        assert (await asked({2}, alone=True)).instance.instance_id == 3
