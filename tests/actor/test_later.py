"""Replies that come later, and actors that share the life of another, in virtual time."""

import asyncio
from dataclasses import dataclass

import pytest

from dynamod.actor import Actor, ActorUnreachable, Crashed, DeadlineExceeded, Reason, Ref, System, handle
from dynamod.actor.testing import virtual


@dataclass(frozen=True)
class Work:
    pass


@dataclass(frozen=True)
class Look:
    pass


@dataclass(frozen=True)
class Boom:
    pass


class Child(Actor):
    def __init__(self) -> None:
        self.ended: Reason | None = None

    @handle
    async def work(self, message: Work) -> int:
        return 1

    @handle
    async def boom(self, message: Boom) -> None:
        raise RuntimeError("boom")

    async def stopping(self, reason: Reason) -> None:
        self.ended = reason


async def _error(ref: Ref, message: object) -> str:
    with pytest.raises(ActorUnreachable) as caught:
        await ref.ask(message, timeout=5)
    return str(caught.value)


class Later(Actor):
    """Replies when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[int]] = []

    @handle
    async def work(self, message: Work) -> asyncio.Future[int]:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    @handle
    async def look(self, message: Look) -> str:
        return "still reading"

    @handle
    async def boom(self, message: Boom) -> None:
        raise RuntimeError("boom")


@virtual
async def test_a_future_is_a_reply_that_comes_later() -> None:
    async with System() as system, asyncio.TaskGroup() as group:
        actor = Later()
        ref = system.start("later", lambda: actor, restart="temporary")
        await system.ready(ref, timeout=1)
        first = group.create_task(ref.ask(Work(), timeout=100))
        second = group.create_task(_error(ref, Work()))
        assert await ref.ask(Look(), timeout=1) == "still reading"
        actor.waiting[0].set_result(7)
        assert await first == 7
        actor.waiting[1].set_exception(ActorUnreachable("no"))
        assert await second == "no"
        done = group.create_task(ref.ask(Work(), timeout=100))
        await asyncio.sleep(1)
        actor.waiting[2].set_result(1)
        assert await done == 1


@virtual
async def test_a_later_reply_is_cancelled_with_its_asker() -> None:
    async with System() as system, asyncio.TaskGroup() as group:
        actor = Later()
        ref = system.start("later", lambda: actor, restart="temporary")
        await system.ready(ref, timeout=1)
        left = group.create_task(ref.ask(Work(), timeout=100))
        await asyncio.sleep(1)
        left.cancel()
        with pytest.raises(DeadlineExceeded, match="did not answer Work in time"):
            await ref.ask(Work(), timeout=2)
        assert [one.cancelled() for one in actor.waiting] == [True, True]
        withdrawn = group.create_task(_error(ref, Work()))
        await asyncio.sleep(1)
        actor.waiting[2].cancel()
        assert "withdrawn" in await withdrawn


@virtual
async def test_who_waits_for_a_later_reply_hears_of_the_actors_end() -> None:
    async with System() as system, asyncio.TaskGroup() as group:
        ref = system.start("later", Later, restart="temporary")
        await system.ready(ref, timeout=1)
        waiting = group.create_task(_error(ref, Work()))
        await asyncio.sleep(1)
        ref.send_nowait(Boom())
        assert "/later ended (RuntimeError: boom) before it replied" in await waiting


class Parent(Actor):
    """Has a child."""

    def __init__(self) -> None:
        self.child = Child()

    async def started(self) -> None:
        self.ref = self.context.child("child", self.child)
        assert await self.ref.ask(Work(), timeout=1) == 1

    @handle
    async def boom(self, message: Boom) -> None:
        raise RuntimeError("the parent's")


@virtual
async def test_a_child_ends_with_its_parent() -> None:
    for end in ("stop", "crash", "kill"):
        async with System() as system:
            parent = Parent()
            ref = system.start("parent", lambda parent=parent: parent, restart="temporary")  # type: ignore[misc]
            await system.ready(ref, timeout=1)
            cell = system.cell(ref)
            assert parent.ref.path == "/parent/child"
            assert cell is not None
            assert cell.task is not None
            if end == "stop":
                await system.root.stop_child("parent")
            elif end == "crash":
                ref.send_nowait(Boom())
            else:
                cell.task.cancel()
            await cell.gone.wait()
            assert parent.child.ended is not None
            assert system.cell(parent.ref) is None


@virtual
async def test_the_crash_of_a_child_is_its_parents() -> None:
    async with System() as system:
        parent = Parent()
        ref = system.start("parent", lambda: parent, restart="temporary")
        await system.ready(ref, timeout=1)
        parent.ref.send_nowait(Boom())
        reason = await system.ended(ref)
        assert isinstance(reason, Crashed)
        assert str(reason.error) == "boom"
        assert system.cell(parent.ref) is None
