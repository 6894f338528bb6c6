"""A feature adds stages to choices and to the dispatcher: toy features, each with what its point is for."""

import asyncio
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual as in_virtual_time
from dynamod.cli import show
from dynamod.extension.feature import Feature
from dynamod.ingress import dispatcher
from dynamod.ingress.dispatch_stage import DispatchStage, Key
from dynamod.message.errors import BadRequest
from dynamod.message.ingress import Failed
from dynamod.message.worker import Request
from dynamod.migration.attempt import Attempt, Break
from dynamod.migration.stages import Ask, Place, Stage, Try
from dynamod.router.decision import Decision
from dynamod.router.placement import Acquire, Placement
from tests.ingress.test_dispatcher import desk, settled
from tests.migration.instances import Air, virtual


class Toys(msgspec.Struct, frozen=True):
    """Toys."""

    toys_total: int


class Toy(Stage):
    """Avoids instance 1, and asks for at most three tokens."""

    def __init__(self, flight: Any) -> None:
        self.flight, self.watched, self.ends = flight, 0, 0

    async def place(self, ask: Ask, proceed: Place) -> Placement:
        return await proceed(ask._replace(exclude={*ask.exclude, 1}))

    async def attempt(self, placement: Placement, request: Request, proceed: Try) -> Break | None:
        if placement.instance.instance_id == 2:
            return Break("the toy does not like the second instance", retry=True, displaced=True, pause=1.0)
        return await proceed(msgspec.structs.replace(request, request_id="toy"))

    async def watch(self, attempt: Attempt, placement: Placement) -> None:
        self.watched += 1

    def failed(self, failed: Failed) -> bool:
        if failed.code == "toy":
            self.flight.give_back(Break("the instance is needed", retry=True, displaced=True, pause=2.0))
        return failed.code == "toy"

    def finished(self) -> None:
        self.ends += 1


@virtual
async def test_a_stage_chooses_changes_and_refuses() -> None:
    toys: list[Toy] = []

    def make(flight: Any) -> Toy:
        toys.append(Toy(flight))
        return toys[-1]

    air = Air(3, outer=[make])
    await air.run()
    assert air.sends == [], "it was sent to none of the two"
    air.busy = {2}
    await asyncio.sleep(1.5)
    await air.settle()
    send = air.last
    assert (send.instance.instance_id, send.request.request_id, toys[0].watched) == (3, "toy", 1)
    send.fail("Overloaded", "not now", retry=True, code="toy")
    await asyncio.sleep(2.5)
    await air.settle()
    assert [one.instance.instance_id for one in air.sends] == [3, 3], "it left without a fault of the instance"
    air.last.tokens(1, 0, finish="eos")
    await air.settle()
    assert (air.client.answer, toys[0].ends, air.broken) == ("a", 1, [])


@virtual
async def test_an_error_of_a_stage_ends_the_choice() -> None:
    class Strict(Stage):
        async def place(self, ask: Ask, proceed: Place) -> Placement:
            raise BadRequest("the toy wants none of this")

    air = Air(outer=[lambda _flight: Strict()])
    await air.run()
    assert str(air.error) == "the toy wants none of this"


@virtual
async def test_the_order_of_stages() -> None:
    begun: list[str] = []

    def named(name: str, where: int) -> Any:
        class Named(Stage):
            order = where

            async def attempt(self, placement: Placement, request: Request, proceed: Try) -> Break | None:
                begun.append(name)
                return await proceed(request)

        return lambda _flight: Named()

    air = Air(outer=[named("b", 0), lambda _flight: None, named("c", 0), named("a", -1)])
    await air.start()
    assert begun == ["a", "b", "c"]


class Note(msgspec.Struct, frozen=True):
    best: int


class Noter(DispatchStage):
    """Notes the worker with the highest number, and has an answer of its own for requests after another one."""

    needs_blocks = True

    def acquire(self, key: Key, message: Acquire) -> Any:
        return f"after {message.after.request}" if message.after is not None else None

    def decided(self, key: Key, message: Acquire, decision: Decision, exclude: Any) -> Decision:
        return msgspec.structs.replace(decision, notes={"toy": Note(max(one.instance for one in decision.candidates))})

    def rows(self, model: str, prefix: str, labels: dict[str, str]) -> Any:
        yield prefix, labels, Toys(7)


@in_virtual_time
async def test_a_stage_at_the_dispatcher_adds_to_decisions_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = Feature("toy", "", dispatch=lambda _dispatcher: Noter(), notes={"toy": lambda: lambda note: str(note)})
    monkeypatch.setattr(dispatcher, "enabled", lambda: [feature])
    monkeypatch.setattr(show, "enabled", lambda: [feature])
    async with desk(3) as (made, _group):
        with await made.acquire("r") as place:
            assert place.decision.notes == {"toy": Note(3)}
            assert made.actor.decisions.of("r") == [place.decision]
            reply: Any = await made.acquire("other", after=place.decision)
            assert (reply, made.actor.needs_blocks) == ("after r", True)
            record = msgspec.to_builtins(place.decision)
            for one in record["candidates"]:
                one["process"] = "w"
            shown = show.decision({**record, **record["notes"], "overlap": 0, "regret": 0})
            assert shown.endswith("{'best': 3}")
        rows = await made.ref.ask(dispatcher.RouterRows("p"), timeout=1)
        assert [row.toys_total for _, _, row in rows if hasattr(row, "toys_total")] == [7]


class Keeper(DispatchStage):
    """Reserves instance 1, and takes requests over whose id begins with `mine`."""

    def __init__(self) -> None:
        self.taken: list[asyncio.Future[Placement]] = []

    def acquire(self, key: Key, message: Acquire) -> asyncio.Future[Placement] | None:
        if not message.prompt.request.startswith("mine"):
            return None
        self.taken.append(asyncio.get_running_loop().create_future())
        return self.taken[-1]

    def reserved(self, key: Key) -> int | None:
        return 1

    def waiting(self, key: Key) -> int:
        return sum(not one.done() for one in self.taken)


@in_virtual_time
async def test_a_stage_at_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper()
    monkeypatch.setattr(dispatcher, "enabled", lambda: [Feature("toy", "", dispatch=lambda _dispatcher: keeper)])
    async with desk(2) as (made, group):
        for number in range(3):
            with await made.acquire(f"other {number}") as other:
                assert other.instance.instance_id == 2
        mine = group.create_task(made.acquire("mine"))
        await settled()
        assert (mine.done(), made.waiting) == (False, 1)
        with await made.acquire("another") as place:
            keeper.taken[0].set_result(place)
            assert (await mine).instance.instance_id == 2
