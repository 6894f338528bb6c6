"""Messages, asks, deadlines, drain and death of single actors, in virtual time."""

import asyncio
from dataclasses import dataclass

import pytest

from dynamod.actor import (
    Actor,
    ActorUnreachable,
    AskCycle,
    Crashed,
    DeadlineExceeded,
    MailboxFull,
    Normal,
    Reason,
    Ref,
    System,
    Terminated,
    WrongMessage,
    control,
    handle,
)
from dynamod.actor.inspect import inspect_system
from dynamod.actor.testing import virtual


@dataclass(frozen=True)
class Work:
    seconds: float = 0.0
    value: int = 0


@dataclass(frozen=True)
class Boom:
    pass


@dataclass(frozen=True)
class Reload:
    pass


@dataclass(frozen=True)
class Forward:
    to: Ref
    message: object
    timeout: float = 1.0


class Worker(Actor):
    mailbox_capacity = 2

    def __init__(self) -> None:
        self.done: list[int] = []
        self.seen: list[object] = []
        self.notices: list[Terminated] = []
        self.ended: Reason | None = None

    @handle
    async def work(self, message: Work) -> int:
        await asyncio.sleep(message.seconds)
        self.done.append(message.value)
        return message.value

    @handle
    async def boom(self, message: Boom) -> None:
        raise RuntimeError("boom")

    @control
    async def reload(self, message: Reload) -> str:
        self.seen.append(message)
        return "reloaded"

    @handle
    async def forward(self, message: Forward) -> object:
        return await message.to.ask(message.message, timeout=message.timeout)

    @handle
    async def terminated(self, message: Terminated) -> None:
        self.notices.append(message)

    async def stopping(self, reason: Reason) -> None:
        self.ended = reason


def actor_of(system: System, ref: Ref) -> Worker:
    cell = system.cell(ref)
    assert cell is not None
    assert isinstance(cell.actor, Worker)
    return cell.actor


async def start(system: System, name: str = "worker") -> Ref:
    ref = system.start(name, Worker, restart="temporary")
    await system.ready(ref, timeout=1)
    return ref


@virtual
async def test_ask_returns_the_reply_and_tell_is_handled_in_order() -> None:
    async with System() as system:
        ref = await start(system)
        ref.send_nowait(Work(1, 1))
        ref.send_nowait(Work(0, 2))
        assert await ref.ask(Work(0, 3), timeout=5) == 3
        assert actor_of(system, ref).done == [1, 2, 3]


@virtual
async def test_a_callback_does_nothing_once_its_actor_has_ended() -> None:
    async with System() as system:
        ref = await start(system)
        actor = actor_of(system, ref)
        called = actor.context.callback(actor.done.append)
        called(1)
        assert actor.done == [1]
        actor.context.stop()
        await asyncio.sleep(1)
        called(2)
        assert actor.done == [1]


@virtual
async def test_a_type_the_actor_does_not_take_is_refused_at_send_time() -> None:
    async with System() as system:
        ref = await start(system)
        with pytest.raises(WrongMessage, match=r"does not take str; it takes: Boom, Forward"):
            ref.send_nowait("hello")
        with pytest.raises(WrongMessage):
            await ref.ask(3, timeout=1)


@virtual
async def test_full_mailbox_waits_or_raises_and_control_passes_it() -> None:
    async with System() as system:
        ref = await start(system)
        ref.send_nowait(Work(10, 1))
        await asyncio.sleep(0.1)  # the first message is being handled, the mailbox is empty
        ref.send_nowait(Work(0, 2))
        ref.send_nowait(Work(0, 3))
        with pytest.raises(MailboxFull, match=r"/worker: mailbox holds 2 of 2"):
            ref.send_nowait(Work(0, 4))
        assert system.statistics().full == 1
        with pytest.raises(DeadlineExceeded):
            await ref.ask(Work(0, 5), timeout=1)
        reload = asyncio.get_running_loop().time()
        assert await ref.ask(Reload(), timeout=20) == "reloaded"
        assert actor_of(system, ref).done == [1], "control is read before the mail that waited longer"
        assert asyncio.get_running_loop().time() - reload < 10
        assert await ref.ask(Work(0, 6), timeout=5) == 6
        assert actor_of(system, ref).done == [1, 2, 3, 6]


@virtual
async def test_a_waiting_sender_that_is_cancelled_leaves_its_place_to_the_next() -> None:
    async with System() as system:
        ref = await start(system)
        ref.send_nowait(Work(10, 1))
        await asyncio.sleep(0.1)
        ref.send_nowait(Work(0, 2))
        ref.send_nowait(Work(0, 3))
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ref.ask(Work(0, 4), timeout=20))
            group.create_task(ref.ask(Work(0, 5), timeout=20))
            await asyncio.sleep(1)
            first.cancel()
        assert await ref.ask(Work(0, 6), timeout=20) == 6
        assert actor_of(system, ref).done == [1, 2, 3, 5, 6]


@virtual
async def test_deadline_interrupts_the_handler_and_the_actor_goes_on() -> None:
    async with System() as system:
        ref = await start(system)
        before = system.now()
        with pytest.raises(DeadlineExceeded, match="did not answer Work in time"):
            await ref.ask(Work(100, 1), timeout=2)
        assert system.now() - before == pytest.approx(2)
        assert await ref.ask(Work(0, 2), timeout=1) == 2, "the handler was freed at the deadline"
        assert actor_of(system, ref).done == [2]
        cell = system.cell(ref)
        assert cell is not None
        assert cell.statistics().abandoned == 1


@virtual
async def test_a_cancelled_asker_frees_the_receiver_at_once() -> None:
    async with System() as system:
        ref = await start(system)
        async with asyncio.TaskGroup() as group:
            ask = group.create_task(ref.ask(Work(100, 1), timeout=1000))
            await asyncio.sleep(1)
            ask.cancel()
        before = system.now()
        assert await ref.ask(Work(0, 2), timeout=5) == 2
        assert system.now() - before < 0.1


@virtual
async def test_a_message_whose_deadline_passed_in_the_mailbox_is_skipped() -> None:
    async with System() as system:
        ref = await start(system)
        ref.send_nowait(Work(5, 1))
        with pytest.raises(DeadlineExceeded):
            await ref.ask(Work(0, 2), timeout=1)
        assert await ref.ask(Work(0, 3), timeout=10) == 3
        assert actor_of(system, ref).done == [1, 3]


@virtual
async def test_the_deadline_of_the_outer_ask_bounds_the_inner_one() -> None:
    async with System() as system:
        a, b = await start(system, "a"), await start(system, "b")
        before = system.now()
        with pytest.raises(DeadlineExceeded):
            await a.ask(Forward(b, Work(100), timeout=50), timeout=3)
        assert system.now() - before == pytest.approx(3)
        assert await b.ask(Work(0, 1), timeout=1) == 1


@virtual
async def test_ask_cycles_are_refused() -> None:
    async with System() as system:
        a, b = await start(system, "a"), await start(system, "b")
        with pytest.raises(ActorUnreachable, match=r"AskCycle: /a -> /b -> /a would wait for itself"):
            await a.ask(Forward(b, Forward(a, Work()), timeout=5), timeout=10)
        c = await start(system, "c")
        with pytest.raises(ActorUnreachable, match="AskCycle"):
            await c.ask(Forward(c, Work()), timeout=1)
    assert issubclass(AskCycle, Exception)


@virtual
async def test_an_exception_given_as_reply_is_raised_at_the_asker_and_crashes_nobody() -> None:
    class Refuse(Actor):
        @handle
        async def work(self, message: Work) -> Exception:
            return ValueError("not today")

    async with System() as system:
        ref = system.start("refuse", Refuse)
        await system.ready(ref, timeout=1)
        with pytest.raises(ValueError, match="not today"):
            await ref.ask(Work(), timeout=1)
        assert system.cell(ref) is not None


@virtual
async def test_a_crash_answers_the_asker_and_all_mail_behind_it() -> None:
    async with System() as system:
        ref = await start(system)
        async with asyncio.TaskGroup() as group:
            crash = group.create_task(_error(ref, Boom()))
            behind = group.create_task(_error(ref, Work(0, 1)))
        assert "RuntimeError: boom" in crash.result()
        assert "ended (RuntimeError: boom) before it read the message" in behind.result()
        with pytest.raises(ActorUnreachable, match="no actor at /worker"):
            await ref.ask(Work(), timeout=1)
        ref.send_nowait(Work())
        assert system.statistics().dead_letters["Work"] == 2


async def _error(ref: Ref, message: object) -> str:
    with pytest.raises(ActorUnreachable) as caught:
        await ref.ask(message, timeout=5)
    return str(caught.value)


@virtual
async def test_death_is_told_to_every_watcher_exactly_once() -> None:
    async with System() as system:
        victim, watcher = await start(system, "victim"), await start(system, "watcher")
        cell = system.cell(watcher)
        assert cell is not None
        cell.actor.context.watch(victim)
        outside: list[Terminated] = []
        system.watch(victim, outside.append)
        victim.send_nowait(Boom())
        await asyncio.sleep(1)
        assert [str(n.reason) for n in outside] == ["RuntimeError: boom"]
        assert [n.ref for n in actor_of(system, watcher).notices] == [victim]
        cell.actor.context.watch(victim)  # dead already: told at once
        await asyncio.sleep(1)
        assert len(actor_of(system, watcher).notices) == 2
        assert len(outside) == 1


@virtual
async def test_a_crashing_helper_crashes_the_actor_even_in_the_middle_of_a_message() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise OSError("socket gone")

    async with System() as system:
        ref = await start(system)
        cell = system.cell(ref)
        assert cell is not None
        cell.actor.context.task(fail())
        before = system.now()
        with pytest.raises(ActorUnreachable):
            await ref.ask(Work(50), timeout=100)
        assert system.now() - before == pytest.approx(1)
        assert str(await system.ended(ref)) == "OSError: socket gone"
        assert isinstance(actor_ended(cell.actor), Crashed)
        assert str(actor_ended(cell.actor)) == "OSError: socket gone"


def actor_ended(actor: Actor) -> Reason | None:
    assert isinstance(actor, Worker)
    return actor.ended


@virtual
async def test_helpers_end_with_their_actor() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append("helper")

    async with System() as system:
        ref = await start(system)
        cell = system.cell(ref)
        assert cell is not None
        cell.actor.context.task(forever())
        await asyncio.sleep(0)
        await system.root.stop_child("worker")
        assert ended == ["helper"]
        with pytest.raises(ActorUnreachable):
            cell.actor.context.task(forever())


@virtual
async def test_drain_finishes_what_is_there_and_refuses_the_rest() -> None:
    async with System() as system:
        ref = await start(system)
        ref.send_nowait(Work(1, 1))
        ref.send_nowait(Work(1, 2))
        cell = system.cell(ref)
        assert cell is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(system.root.stop_child("worker", drain=True, timeout=10))
            await asyncio.sleep(1.5)
            assert cell.state == "Draining"
            with pytest.raises(ActorUnreachable, match="draining"):
                await ref.ask(Work(0, 3), timeout=1)
        assert isinstance(cell.actor, Worker)
        assert cell.actor.done == [1, 2]
        assert cell.reason == Normal()


@virtual
async def test_mail_that_nobody_reads_is_told_to_the_message_itself() -> None:
    told: list[str] = []

    class Letter(Work):
        def undeliverable(self, why: str) -> None:
            told.append(why)

    class Reader(Worker):
        @handle
        async def letter(self, message: Letter) -> None:
            pass

    async with System() as system:
        ref = system.start("reader", Reader, restart="temporary")
        await system.ready(ref, timeout=1)
        ref.send_nowait(Work(5))
        await asyncio.sleep(0.1)
        ref.send_nowait(Letter())
        cell = system.cell(ref)
        assert cell is not None
        assert cell.task is not None
        cell.task.cancel()
        await asyncio.sleep(0.1)
        ref.send_nowait(Letter())
        ref.send_nowait(Letter())
        assert told == ["/reader: the actor ended", "/reader: no actor there", "/reader: no actor there"]


@virtual
async def test_drained_waits_for_work_beside_the_mailbox() -> None:
    class Busy(Actor):
        async def started(self) -> None:
            self.work = self.context.task(asyncio.sleep(3))

        async def drained(self) -> None:
            await self.work

    async with System() as system:
        ref = system.start("busy", Busy)
        await system.ready(ref, timeout=1)
        before = system.now()
        await system.root.stop_child("busy", drain=True, timeout=10)
        assert system.now() - before == pytest.approx(3)


@virtual
async def test_an_actor_that_does_not_stop_is_killed_after_its_timeout() -> None:
    async with System() as system:
        ref = system.start("stuck", Worker, shutdown=2)
        await system.ready(ref, timeout=1)
        ref.send_nowait(Work(1e6))
        await asyncio.sleep(0.1)
        cell = system.cell(ref)
        assert cell is not None
        before = system.now()
        await system.root.stop_child("stuck")
        assert system.now() - before == pytest.approx(2)
        assert str(cell.reason) == "CancelledError: killed"
        assert actor_ended(cell.actor) is not None, "`stopping` runs whatever the reason"


@virtual
async def test_stopping_that_hangs_is_cut_off() -> None:
    class Sticky(Actor):
        async def stopping(self, reason: Reason) -> None:
            await asyncio.sleep(1e6)

    async with System() as system:
        await system.ready(system.start("sticky", Sticky, shutdown=2), timeout=1)
        before = system.now()
        await system.root.stop_child("sticky")
        assert system.now() - before < 7


@virtual
async def test_inspect_shows_the_message_its_age_and_the_stack_of_a_hanging_actor() -> None:
    async with System() as system:
        ref = await start(system)
        ref.send_nowait(Work(30, 1))
        ref.send_nowait(Work(0, 2))
        await asyncio.sleep(7)
        facts = {entry["path"]: entry for entry in inspect_system(system)}["/worker"]
        assert facts["current"] == "Work"
        assert facts["current_age"] == pytest.approx(7)
        assert facts["mailbox"]["depth"] == 1
        assert facts["state"] == "Ready"
        text = "\n".join(facts["tasks"][0]["stack"])
        assert "Worker.work" in text
        assert "sleep" in text
