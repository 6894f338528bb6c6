"""The worker actor around an engine: what it takes and refuses, how it drains and dies."""

import asyncio
from typing import Any

import msgspec
import pytest

from dynamod.actor import Crashed, System
from dynamod.actor.testing import virtual
from dynamod.engine.base import Engine, EngineOptions, EngineStatistics
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.worker import PASSED, TRIAL_TAKEN, Call, Chat, Generate
from dynamod.transport.base import CONFIRM, Reply
from dynamod.worker.worker import OTHERS


class Manual(Engine):
    """Does nothing by itself: the test answers. A token id 13 breaks it, 14 crashes it a second later."""

    name = "manual"
    serves = (Generate,)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.replies: list[Reply] = []
        self.step: tuple[int, float] | None = None  # its number, and for how long it has run
        self.closed = 0

    async def start(self) -> None:
        if self.options.name == "missing":
            raise UserError("the model is missing", "look for it")
        await asyncio.sleep(2)

    def card(self) -> ModelCard:
        return ModelCard(self.options.name)

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        assert isinstance(request, Generate)
        ids = list(tokens.unpack(request.token_ids))
        if 13 in ids:
            raise KeyError("thirteen")
        self.replies.append(reply)
        if 14 in ids:
            self.spawn(self._crash(), "crash")

    async def _crash(self) -> None:
        await asyncio.sleep(1)
        raise RuntimeError("the engine broke")

    def statistics(self) -> EngineStatistics:
        steps, since = self.step or (0, None)
        return EngineStatistics(running=len(self.replies), steps=steps, in_step_for=since)

    async def close(self) -> None:
        self.closed += 1


def engine_of(house: Any) -> Manual:
    engine = house.workers[-1]._engine
    assert isinstance(engine, Manual)
    return engine


async def house_of(words: Any, system: System, make: Any = Manual) -> Any:
    return await words.House(system, make, EngineOptions("m")).start()


@virtual
async def test_the_card_is_published_when_the_engine_has_loaded(words: Any) -> None:
    async with System() as system:
        house = words.House(system, Manual, EngineOptions("m"))
        starting = asyncio.get_running_loop().create_task(house.start())
        await asyncio.sleep(1)
        assert house.published == []
        await starting
        assert [card.name for card in house.published] == ["m"]
        assert house.withdrawn == 0
    assert house.withdrawn == 1
    assert engine_of(house).closed == 1


@virtual
async def test_an_engine_that_cannot_load_says_why(words: Any) -> None:
    async with System() as system:
        house = words.House(system, Manual, EngineOptions("missing"))
        ref = system.start("worker", house._worker, restart="temporary")
        reason = await system.ended(ref)
        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, UserError)
    assert house.published == []


@pytest.mark.parametrize("kind", [Chat, Call])
def test_the_wrong_kind_of_request_is_refused(words: Any, kind: type) -> None:
    request = words.chat("x") if kind is Chat else Call("r")

    @virtual
    async def main() -> None:
        async with System() as system:
            house = await house_of(words, system)
            answer = await house.ask(request).wait()
            assert answer.error is not None
            assert answer.error.error == "BadRequest"
            assert answer.error.message == f"this endpoint takes Generate, not {kind.__name__}"
            assert not answer.accepted
            assert (house.statistics.refused, house.statistics.accepted) == (1, 0)
            assert engine_of(house).replies == []

    main()


@virtual
async def test_an_engine_may_serve_several_kinds_of_requests(words: Any) -> None:
    class Both(Manual):
        serves = (Generate, Chat)

        def submit(self, request: Generate | Chat, reply: Reply) -> None:
            reply.text(type(request).__name__, 1, "stop")

    async with System() as system:
        house = await house_of(words, system, Both)
        answers = [await house.ask(request).wait() for request in (words.generate([1]), words.chat("x"))]
        assert [answer.text for answer in answers] == ["Generate", "Chat"]
        refused = (await house.ask(Call("r")).wait()).error
        assert refused is not None
        assert refused.message == "this endpoint takes Generate or Chat, not Call"


@virtual
async def test_accepted_comes_first_and_open_streams_are_counted(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        answers = [house.ask(words.generate([1])) for _ in range(3)]
        await asyncio.sleep(0)
        assert [type(answer.deltas[0]).__name__ for answer in answers] == ["Accepted"] * 3
        assert house.statistics.open == 3
        first, second, third = engine_of(house).replies
        first.tokens(tokens.pack([1]), 1, "stop")
        second.failed("EngineFailed", "no")
        answers[2].stream.cancel()
        third.tokens(tokens.pack([1]), 1, "stop")  # too late, and harmless
        statistics = house.statistics
        assert (statistics.accepted, statistics.open, statistics.cancelled) == (3, 0, 1)
        assert house.workers[-1].inspection()["engine"]["running"] == 3


@virtual
async def test_who_left_before_the_mail_was_read_costs_nothing(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        house.ask(words.generate([1])).stream.cancel()
        await asyncio.sleep(1)
        assert house.statistics.accepted == 0
        assert engine_of(house).replies == []


@virtual
async def test_an_engine_that_cannot_take_a_request_keeps_its_others(
    words: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with System() as system:
        house = await house_of(words, system)
        good, bad = house.ask(words.generate([1])), house.ask(words.generate([13]))
        await bad.wait()
        assert bad.error is not None
        assert (bad.error.error, bad.error.retry) == ("EngineFailed", False)
        assert "raised KeyError" in bad.error.message
        assert ("thirteen" in bad.error.message, "thirteen" in caplog.text) == (False, True)
        engine_of(house).replies[0].tokens(tokens.pack([1]), 1, "stop")
        assert good.finish == "stop"
        assert house.statistics.open == 0


@virtual
async def test_drain_waits_for_open_streams_and_takes_no_more(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        answer = house.ask(words.generate([1]))
        await asyncio.sleep(1)
        now = asyncio.get_running_loop().time
        began = now()
        draining = asyncio.get_running_loop().create_task(system.root.stop_child("worker", drain=True, timeout=60))
        await asyncio.sleep(5)
        assert house.withdrawn == 1
        assert engine_of(house).closed == 0
        assert not draining.done()
        engine_of(house).replies[0].tokens(tokens.pack([9]), 1, "stop")
        await draining
        assert answer.ids == [9]
        assert now() - began == pytest.approx(5)
        assert engine_of(house).closed == 1


@virtual
async def test_drain_without_streams_is_at_once(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        before = asyncio.get_running_loop().time()
        await system.root.stop_child("worker", drain=True, timeout=60)
        assert asyncio.get_running_loop().time() == before
        assert engine_of(house).closed == 1


@virtual
async def test_streams_of_a_worker_that_dies_end_and_may_move(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        answers = [house.ask(words.generate([number])) for number in (1, 14)]
        for answer in answers:
            await answer.wait(30)
            assert answer.error is not None
            assert (answer.error.error, answer.error.retry) == ("EngineFailed", True)
            assert "the engine broke" in answer.error.message
        assert house.withdrawn == 1
        assert engine_of(house).closed == 1


@virtual
async def test_a_full_mailbox_refuses_so_that_another_may_take_it(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        answers = [house.ask(words.generate([1])) for _ in range(1025)]
        error = answers[-1].error
        assert error is not None
        assert (error.error, error.retry) == ("Overloaded", True)
        assert [answer.error for answer in answers[:-1]] == [None] * 1024
        await asyncio.sleep(1)
        assert house.statistics.accepted == 1024


def alone(words: Any, prompt: list[int]) -> Generate:
    return msgspec.structs.replace(words.generate(prompt), alone=True)


@pytest.mark.parametrize("comes", [True, False])
@virtual
async def test_one_suspect_at_a_time_is_tried_whoever_sends_it(words: Any, comes: bool) -> None:
    async with System() as system:
        house = await house_of(words, system)
        engine = engine_of(house)
        before = house.ask(words.generate([3]))
        await asyncio.sleep(1)
        first, second = house.ask(alone(words, [1])), house.ask(alone(words, [2]))
        ordinary = house.ask(words.generate([4]))
        await asyncio.gather(second.wait(), ordinary.wait())
        for refused in (second, ordinary):
            assert (refused.error.code, refused.error.retry) == (TRIAL_TAKEN, True), "its doing could be another's"
        await asyncio.sleep(OTHERS - 1)
        assert not first.accepted, "the prompt of the other one may crash the worker"
        if comes:
            engine.replies[0].tokens(tokens.pack([5]), 1)
        await asyncio.sleep(0.5 if comes else 1.5)
        assert first.accepted
        first.stream.confirm()
        await asyncio.sleep(1)
        assert first.accepted
        assert len(engine.replies) == 2
        engine.replies[1].tokens(tokens.pack([5] * PASSED), PASSED)
        third = house.ask(alone(words, [4]))
        await asyncio.sleep(OTHERS + 1)
        assert third.accepted, "the first one has passed"
        third.stream.confirm()
        await asyncio.sleep(1)
        for reply in engine.replies:
            reply.tokens(b"", 0, "stop")
        await asyncio.gather(first.wait(), before.wait(), third.wait())


@virtual
async def test_a_suspect_is_accepted_behind_the_step_that_runs(words: Any) -> None:
    """A step that never ends is not the doing of who came later; and who has begun is known to its sender."""
    async with System() as system:
        house = await house_of(words, system)
        engine = engine_of(house)
        engine.step = (7, 0.5)
        answer = house.ask(alone(words, [1]))
        await asyncio.sleep(60)
        assert not answer.accepted
        engine.step = (8, 0.0)
        await asyncio.sleep(CONFIRM / 2)
        assert answer.accepted
        assert not engine.replies, "what it does to the engine comes later"
        answer.stream.confirm()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(engine.replies) == 1, "no clock keeps it waiting"
        answer.stream.confirm()
        engine.replies[0].tokens(b"", 0, "stop")
        await answer.wait()
        assert len(engine.replies) == 1, "a second confirmation has no effect"


@virtual
async def test_a_suspect_whose_sender_does_not_confirm_never_begins(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        answer = house.ask(alone(words, [1]))
        await answer.wait()
        assert (answer.accepted, answer.error.retry) == (True, True)
        assert "did not answer within" in answer.error.message
        left = house.ask(alone(words, [1]))
        await asyncio.sleep(CONFIRM / 2)
        assert left.accepted
        left.stream.cancel()
        await asyncio.sleep(2 * CONFIRM)
        assert engine_of(house).replies == []


@virtual
async def test_a_suspect_that_waits_goes_elsewhere_when_the_worker_ends(words: Any) -> None:
    async with System() as system:
        house = await house_of(words, system)
        engine_of(house).step = (7, 0.5)
        answer = house.ask(alone(words, [1]))
        await asyncio.sleep(1)
        await system.root.stop_child("worker", drain=True, timeout=60)
        assert (await answer.wait()).error.retry
