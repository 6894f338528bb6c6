"""A feature adds a capability of its own: engines have its protocol, and a part of the worker asks for the protocol."""

from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec
import pytest

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.engine.base import EngineOptions
from dynamod.extension.feature import Feature
from dynamod.message.errors import BadRequest
from dynamod.transport.base import Reply
from dynamod.worker import parts
from dynamod.worker.parts import WorkerContext, WorkerPart


@runtime_checkable
class Sleeps(Protocol):
    """The toy capability: the engine frees memory while no request runs."""

    sleeping: bool

    def sleep(self, level: int) -> int:
        """Free memory; returns the bytes that were freed."""
        ...


class Sleep(msgspec.Struct, frozen=True):
    request_id: str
    level: int


class SleepSection(msgspec.Struct, frozen=True):
    """What the card of a worker says of the toy capability."""

    sleeping: bool = False


class SleepPart(WorkerPart):
    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._sleeper = context.engine if isinstance(context.engine, Sleeps) else None

    def section(self) -> SleepSection | None:
        return SleepSection(self._sleeper.sleeping) if self._sleeper is not None else None

    async def sleep(self, request: Sleep, reply: Reply) -> None:
        if self._sleeper is None:
            raise BadRequest(f"engine {self.context.engine.name} cannot sleep")
        freed = self._sleeper.sleep(request.level)
        self.context.publish()
        reply.items((str(freed).encode(),), "stop")

    messages: ClassVar = {Sleep: sleep}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feature `sleep` is the only one."""
    monkeypatch.setattr(parts, "enabled", lambda: (Feature("sleep", "a toy", worker=lambda: SleepPart),))


@virtual
async def test_an_engine_with_the_protocol_has_the_capability_of_a_feature(words: Any) -> None:
    class Sleeper(words.Mock):
        sleeping = False

        def sleep(self, level: int) -> int:
            self.sleeping = True
            return level * 1000

    async with System() as system:
        house = await words.House(system, Sleeper, EngineOptions("m")).start()
        assert house.published[-1].section("sleep", SleepSection) == SleepSection(False)
        answer = await house.ask(Sleep("r", 2)).wait()
        assert [item for one in answer.deltas if hasattr(one, "items") for item in one.items] == [b"2000"]
        assert house.published[-1].section("sleep", SleepSection) == SleepSection(True)


@virtual
async def test_an_engine_without_the_protocol_lacks_the_capability(words: Any) -> None:
    async with System() as system:
        house = await words.House(system, words.Mock, EngineOptions("m")).start()
        assert "sleep" not in house.published[-1].sections
        error = (await house.ask(Sleep("r", 2)).wait()).error
        assert (error.error, error.message) == ("BadRequest", "engine mocker cannot sleep")
