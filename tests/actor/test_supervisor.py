"""Restarts: backoff, intensity, incarnations, ordered start and stop, in virtual time."""

import asyncio
from dataclasses import dataclass
from random import Random

import msgspec
import pytest

from dynamod.actor import Actor, ActorUnreachable, Backoff, Policy, Reason, Ref, Spec, Supervisor, System, handle
from dynamod.actor.inspect import reports
from dynamod.actor.testing import virtual

STEADY = Backoff(initial=1, factor=2, maximum=8, jitter=0, reset_after=1e9)


@dataclass(frozen=True)
class Crash:
    pass


@dataclass(frozen=True)
class Quit:
    pass


@dataclass(frozen=True)
class Who:
    pass


class Child(Actor):
    def __init__(self, name: str, events: list[str], start_delay: float = 0.0) -> None:
        self.name, self.events, self.start_delay = name, events, start_delay

    async def started(self) -> None:
        await asyncio.sleep(self.start_delay)
        self.events.append(f"+{self.name}")

    async def stopping(self, reason: Reason) -> None:
        self.events.append(f"-{self.name}")

    @handle
    async def crash(self, message: Crash) -> None:
        raise RuntimeError(f"{self.name} fell")

    @handle
    async def quit(self, message: Quit) -> None:
        self.context.stop()

    @handle
    async def who(self, message: Who) -> int | None:
        return self.context.ref.incarnation


def specs(names: str, events: list[str], start_delay: float = 0.0, **kwargs: object) -> list[Spec]:
    def spec(name: str) -> Spec:
        return Spec(name, lambda: Child(name, events, start_delay), backoff=STEADY, **kwargs)  # type: ignore[arg-type]

    return [spec(name) for name in names]


async def house(system: System, events: list[str], policy: Policy, names: str = "abc", **kwargs: object) -> Supervisor:
    ref = system.start("house", lambda: Supervisor(specs(names, events, **kwargs), policy), restart="temporary")  # type: ignore[arg-type]
    await system.ready(ref, timeout=60)
    cell = system.cell(ref)
    assert cell is not None
    assert isinstance(cell.actor, Supervisor)
    return cell.actor


def child(system: System, name: str) -> Ref:
    return system.ref(f"/house/{name}")


@virtual
async def test_children_start_in_order_each_when_the_one_before_is_ready_and_stop_in_reverse() -> None:
    events: list[str] = []
    async with System() as system:
        before = system.now()
        await house(system, events, Policy(), start_delay=2)
        assert system.now() - before == pytest.approx(6)
        assert events == ["+a", "+b", "+c"]
    assert events == ["+a", "+b", "+c", "-c", "-b", "-a"]


@virtual
async def test_a_child_that_crashes_is_started_again_after_the_backoff_and_the_others_go_on() -> None:
    events: list[str] = []
    async with System() as system:
        await house(system, events, Policy())
        events.clear()
        child(system, "b").send_nowait(Crash())
        await asyncio.sleep(0.9)
        assert not [event for event in events if event.startswith("+")], "nothing starts before the backoff"
        await asyncio.sleep(5)
        assert events == ["-b", "+b"]


@virtual
async def test_backoff_doubles_in_a_row_and_starts_again_after_a_quiet_time() -> None:
    events: list[str] = []
    backoff = Backoff(initial=1, factor=2, maximum=4, jitter=0, reset_after=100)
    async with System(policy=Policy(intensity=100, period=1e9)) as system:
        ref = system.start("c", lambda: Child("c", events), backoff=backoff).current
        waits = []
        for quiet in (0, 0, 0, 0, 200, 0):
            await asyncio.sleep(quiet)
            ref.send_nowait(Crash())
            await asyncio.sleep(0.001)
            before = system.now()
            waited = 0.0
            for _ in range(1000):
                if system.cell(ref) is not None:
                    waited = system.now() - before
                    break
                await asyncio.sleep(0.01)
            waits.append(round(waited))
        assert waits == [1, 2, 4, 4, 1, 2]


def test_jitter_stays_within_its_share() -> None:
    delays = [Backoff(initial=1, jitter=0.2).delay(1, Random(seed)) for seed in range(200)]
    assert min(delays) >= 0.8
    assert max(delays) <= 1.2
    assert max(delays) - min(delays) > 0.3


@virtual
async def test_too_many_crashes_end_the_supervisor_and_its_other_children() -> None:
    events: list[str] = []
    async with System() as system:
        supervisor = await house(system, events, Policy(intensity=2, period=60))
        ref = supervisor.context.ref
        for _ in range(3):
            child(system, "b").send_nowait(Crash())
            await asyncio.sleep(5)
        reason = await system.ended(ref)
        assert events[-3:] == ["-b", "-c", "-a"]
        assert system.cell(ref) is None
        assert "not running" in str(reason)


@virtual
async def test_the_same_crashes_spread_over_a_longer_time_are_survived() -> None:
    events: list[str] = []
    async with System() as system:
        supervisor = await house(system, events, Policy(intensity=2, period=60))
        for _ in range(10):
            child(system, "b").send_nowait(Crash())
            await asyncio.sleep(500)
        assert system.cell(supervisor.context.ref) is not None
        assert [c.restarts for c in supervisor.children()] == [0, 10, 0]


class Late(Child):
    """Starts from its third attempt on."""

    async def started(self) -> None:
        self.events.append("try")
        if self.events.count("try") < 3:
            raise OSError("not yet")


@virtual
async def test_without_escalation_a_child_that_never_starts_is_fatal_with_its_reason_and_the_others_live() -> None:
    events: list[str] = []
    async with System() as system:
        supervisor = await house(system, [], Policy(intensity=1, period=60, escalate=False))
        supervisor.start_child(Spec("late", lambda: Late("late", events), backoff=STEADY))
        await asyncio.sleep(20)
        states = {c.name: (c.state, c.last_error) for c in supervisor.children()}
        assert states["late"] == ("Fatal", "OSError: not yet")
        assert {states[name][0] for name in "abc"} == {"Ready"}
        supervisor.start_child(Spec("late", lambda: Late("late", events), backoff=STEADY))  # a person mends it
        (late,) = [one for one in supervisor.children() if one.name == "late"]
        assert (late.restarts, late.last_error) == (0, ""), "the error was that of the child before"
        await asyncio.sleep(1)
        assert await child(system, "late").ask(Who(), timeout=1) == 3


@virtual
async def test_without_escalation_a_child_that_has_been_ready_is_never_given_up() -> None:
    events: list[str] = []
    async with System() as system:
        supervisor = await house(system, events, Policy(intensity=1, period=60, escalate=False))
        for crashes in range(1, 8):
            child(system, "b").send_nowait(Crash())
            await asyncio.sleep(9)
            (row,) = [one for one in supervisor.children() if one.name == "b"]
            assert (row.state, row.restarts) == ("Ready", crashes)


@virtual
async def test_a_child_that_was_ready_and_cannot_start_for_a_while_comes_back() -> None:
    """Neither an error that calls itself permanent nor many in a row change that; a restart by hand neither."""
    events: list[str] = []

    class Flaky(Child):
        broken = False

        async def started(self) -> None:
            if self.broken:
                error = OSError("away")
                error.permanent = True  # type: ignore[attr-defined]
                raise error

    async with System() as system:
        supervisor = await house(system, events, Policy(intensity=1, period=60, escalate=False))
        await system.ready(supervisor.start_child(Spec("f", lambda: Flaky("f", events), backoff=STEADY)), timeout=1)
        Flaky.broken = True
        await supervisor.restart_child("f")
        await asyncio.sleep(60)
        assert {one.name: one.state for one in supervisor.children()}["f"] == "Restarting"
        Flaky.broken = False
        await asyncio.sleep(9)
        assert {one.name: one.state for one in supervisor.children()}["f"] == "Ready"


@virtual
async def test_messages_for_an_old_incarnation_is_dropped_and_counted() -> None:
    events: list[str] = []
    async with System() as system:
        await house(system, events, Policy())
        cell = system.cell(child(system, "a"))
        assert cell is not None
        old = cell.ref
        assert await old.ask(Who(), timeout=1) == 1
        old.send_nowait(Crash())
        await asyncio.sleep(5)
        assert await old.current.ask(Who(), timeout=1) == 2
        old.send_nowait(Crash())
        await asyncio.sleep(5)
        assert await old.current.ask(Who(), timeout=1) == 2, "the stale message reached nobody"
        assert system.statistics().dead_letters == {"Crash": 1}
        with pytest.raises(ActorUnreachable):
            await old.ask(Who(), timeout=1)


@virtual
async def test_temporary_children_stay_down() -> None:
    events: list[str] = []
    async with System() as system:
        supervisor = await house(system, events, Policy(), names="ab")
        supervisor.start_child(specs("t", events, restart="temporary")[0])
        await asyncio.sleep(1)
        child(system, "t").send_nowait(Crash())
        await asyncio.sleep(5)
        assert [c.name for c in supervisor.children()] == ["a", "b"]
        assert events[-1] == "-t"


@virtual
async def test_a_permanent_child_comes_back_after_a_normal_end() -> None:
    events: list[str] = []
    async with System() as system:
        await house(system, events, Policy(), names="a")
        child(system, "a").send_nowait(Quit())
        await asyncio.sleep(5)
        assert await child(system, "a").ask(Who(), timeout=1) == 2


@virtual
async def test_restart_on_demand_is_no_crash() -> None:
    events: list[str] = []
    async with System() as system:
        supervisor = await house(system, events, Policy(intensity=0))
        ref = await supervisor.restart_child("b")
        await system.ready(ref, timeout=1)
        assert ref.incarnation == 2
        assert events[-2:] == ["-b", "+b"]
        await asyncio.sleep(20)
        assert [c.restarts for c in supervisor.children()] == [0, 1, 0]


@virtual
async def test_a_factory_that_fails_counts_as_a_crash() -> None:
    tries = []

    def factory() -> Child:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("no such file")
        return Child("late", [])

    async with System() as system:
        ref = system.start("late", factory, backoff=STEADY)
        await asyncio.sleep(10)
        assert await ref.current.ask(Who(), timeout=1) == 3


@virtual
async def test_a_first_start_that_fails_fails_the_supervisor() -> None:
    class Broken(Actor):
        async def started(self) -> None:
            raise OSError("no such model")

    async with System() as system:
        ref = system.start("house", lambda: Supervisor([Spec("x", Broken)]), restart="temporary")
        with pytest.raises(ActorUnreachable, match="OSError: no such model"):
            await system.ready(ref, timeout=5)


@virtual
async def test_a_child_that_is_stopped_while_it_starts_does_not_come_back() -> None:
    events: list[str] = []
    async with System() as system:
        system.start("slow", lambda: Child("slow", events, start_delay=100))
        await asyncio.sleep(1)
        before = system.now()
        await system.root.stop_child("slow")
        assert system.now() - before < 0.1
        await asyncio.sleep(200)
        assert events == ["-slow"]


@virtual
async def test_when_the_root_gives_up_the_system_says_why() -> None:
    async with System(policy=Policy(intensity=0)) as system:
        system.start("a", lambda: Child("a", []))
        await asyncio.sleep(1)
        system.ref("/a").send_nowait(Crash())
        reason = await system.ended(system.ref(""))
        assert system.failure == reason
        assert "crashed more than 0 times" in str(reason)


class Born(msgspec.Struct, frozen=True):
    children: int


class Parent(Child):
    def statistics(self) -> Born:
        return Born(2)


@virtual
async def test_reports_of_what_runs() -> None:
    async with System() as system:
        under = await system.supervisor("family")
        ref = system.start("parent", lambda: Parent("parent", []), under=under)
        await system.ready(ref, timeout=1)
        await ref.ask(Who(), timeout=1)
        found = {report.kernel.path: report for report in reports(system)}
        assert found.keys() == {"", "/family", "/family/parent"}
        parent = found["/family/parent"]
        assert (parent.own, parent.kernel.kind, parent.kernel.handled, parent.children) == (Born(2), "Parent", 1, [])
        assert found["/family"].own is None
        assert [child.path for child in found["/family"].children] == ["/family/parent"]


@virtual
async def test_the_supervisor_behind_a_reference() -> None:
    async with System() as system:
        ref = system.start("family", Supervisor, restart="temporary")
        await system.ready(ref, timeout=1)
        supervisor = system.supervisor_of(ref)
        assert supervisor is not None
        child = system.start("child", lambda: Child("child", []), under=supervisor)
        assert system.supervisor_of(child) is None
        await system.root.stop_child("family")
        assert system.supervisor_of(ref) is None


@virtual
async def test_a_drain_that_may_take_long_does_not_give_the_end_as_much_time() -> None:
    class Endless(Child):
        async def drained(self) -> None:
            await asyncio.sleep(1e6)

        async def stopping(self, reason: Reason) -> None:
            await asyncio.sleep(1e6)

    async with System() as system:
        supervisor = await house(system, [], Policy())
        supervisor.start_child(Spec("endless", lambda: Endless("endless", []), shutdown=2.0))
        await asyncio.sleep(1)
        began = system.now()
        await supervisor.stop_child("endless", drain=True, timeout=100)
        assert system.now() - began == pytest.approx(102)


@virtual
async def test_the_end_may_take_as_long_as_is_waited_for_it() -> None:
    class Slow(Child):
        async def stopping(self, reason: Reason) -> None:
            await asyncio.sleep(30)
            self.events.append("done")

    events: list[str] = []
    async with System() as system:
        supervisor = await house(system, [], Policy())
        supervisor.start_child(Spec("slow", lambda: Slow("slow", events), shutdown=2.0))
        await asyncio.sleep(1)
        await supervisor.stop_child("slow", timeout=40)
        assert events[-1] == "done"
