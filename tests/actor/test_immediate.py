"""Receivers that are plain functions: an idle actor answers within the asker's turn of the event loop; virtual time."""

import asyncio
from typing import Any

import pytest

from dynamod.actor import Actor, ActorUnreachable, DeadlineExceeded, Ref, System, handle
from dynamod.actor.testing import virtual

from .test_actor import Boom, Reload, Work, _error


class Counter(Actor):
    """Counts at once, and reads slowly."""

    mailbox_capacity = 2

    def __init__(self) -> None:
        self.log: list[str] = []
        self.later: asyncio.Future[str] | None = None

    @handle
    def work(self, message: Work) -> Any:
        self.log.append("work")
        return self.later or len(self.log)

    @handle
    async def reload(self, message: Reload) -> str:
        self.log.append("begins to read")
        await asyncio.sleep(1)
        self.log.append("has read")
        return "read"

    @handle
    def boom(self, message: Boom) -> Exception:
        if not self.log:
            raise RuntimeError("boom")
        return KeyError("expected")


async def started(system: System, actor: Counter) -> Ref:
    ref = system.start("counter", lambda: actor, restart="temporary")
    await system.ready(ref, timeout=1)
    await asyncio.sleep(0)
    return ref


@virtual
async def test_an_idle_actor_answers_without_another_turn_of_the_loop() -> None:
    async with System() as system:
        actor = Counter()
        ref = await started(system, actor)
        asked = ref.ask(Work(), timeout=1)
        with pytest.raises(StopIteration) as ended:
            asked.send(None)  # the coroutine never waits
        assert ended.value.value == 1
        with pytest.raises(KeyError, match="expected"):
            await ref.ask(Boom(), timeout=1)
        cell = system.cell(ref)
        assert cell is not None
        assert cell.statistics().handled == 2


@virtual
async def test_messages_are_handled_one_at_a_time_in_their_order() -> None:
    async with System() as system, asyncio.TaskGroup() as group:
        actor = Counter()
        ref = await started(system, actor)
        slow = group.create_task(ref.ask(Reload(), timeout=10))
        await asyncio.sleep(0)
        ref.send_nowait(Work())
        count = group.create_task(ref.ask(Work(), timeout=10))
        await asyncio.sleep(0.5)
        assert actor.log == ["begins to read"]
        full = group.create_task(ref.ask(Work(), timeout=10))
        assert (await slow, await count, await full) == ("read", 4, 5)
        assert actor.log == ["begins to read", "has read", "work", "work", "work"]


@virtual
async def test_a_message_that_was_sent_before_is_handled_before() -> None:
    async with System() as system:
        actor = Counter()
        ref = await started(system, actor)
        ref.send_nowait(Reload())
        assert await ref.ask(Work(), timeout=10) == 3
        assert actor.log == ["begins to read", "has read", "work"]


@virtual
async def test_a_later_reply_has_the_deadline_of_its_asker() -> None:
    async with System() as system, asyncio.TaskGroup() as group:
        actor = Counter()
        ref = await started(system, actor)
        actor.later = asyncio.get_running_loop().create_future()
        asked = group.create_task(ref.ask(Work(), timeout=10))
        await asyncio.sleep(1)
        actor.later.set_result("later")
        assert await asked == "later"
        actor.later = asyncio.get_running_loop().create_future()
        with pytest.raises(DeadlineExceeded, match="did not answer Work in time"):
            await ref.ask(Work(), timeout=2)
        assert actor.later.cancelled()
        actor.later = asyncio.get_running_loop().create_future()
        waits = group.create_task(_error(ref, Work()))
        await asyncio.sleep(1)
        actor.context.stop()
        assert "/counter ended" in await waits


@virtual
async def test_an_exception_crashes_the_actor_and_names_the_crash_to_the_asker() -> None:
    async with System() as system:
        actor = Counter()
        ref = await started(system, actor)
        gone: list[Any] = []
        system.watch(ref, gone.append)
        with pytest.raises(ActorUnreachable, match="/counter crashed: RuntimeError: boom"):
            await ref.ask(Boom(), timeout=1)
        with pytest.raises(ActorUnreachable):
            await ref.ask(Work(), timeout=1)  # it handles nothing more, although its task has not ended yet
        await asyncio.sleep(1)
        assert str(gone[0].reason) == "RuntimeError: boom"
        assert actor.log == []


@virtual
async def test_a_message_without_an_asker_is_handled_in_the_actors_own_turn() -> None:
    async with System() as system:
        actor = Counter()
        ref = await started(system, actor)
        ref.send_nowait(Work())
        assert actor.log == []
        await asyncio.sleep(0.1)
        assert actor.log == ["work"]
