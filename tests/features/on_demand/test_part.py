"""What a request holds of its model: from its turn to the end of its last choice, and nothing behind it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import msgspec
import pytest

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.features.on_demand.keeper import ModelKeeper
from dynamod.features.on_demand.part import PART, ModelsOnDemand
from dynamod.features.on_demand.settings import Budget, ModelSettings
from dynamod.ingress.base import Job
from dynamod.ingress.parts import ProcessorContext, ProcessorPart, ProcessorParts
from dynamod.message.discovery import Adapter, ModelCard
from dynamod.message.errors import BadRequest, EngineFailed, Overloaded, RequestError
from dynamod.message.openai import EngineFields

from .test_keeper import Workers


class Sink:
    """Keeps what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        for name in (
            "started",
            "echoed",
            "placed",
            "recorded",
            "text",
            "logprobs",
            "prompt_logprobs",
            "chunk",
            "counted",
            "finish",
            "fail",
        ):
            setattr(self, name, lambda *_given, name=name: self.calls.append(name))


class Inner:
    """The rest of a processor, whose requests do what the test says."""

    def __init__(self) -> None:
        self.sinks: list[Any] = []
        self.cancelled = 0
        self.error: RequestError | None = None
        self.wrong: RequestError | None = None

    def cards(self) -> Mapping[str, ModelCard]:
        adapters = {"x": ModelCard("x", parent="a", adapter=Adapter("x"))}
        return {name: ModelCard(name) for name in ("a", "b", "elsewhere")} | adapters

    async def check(self, job: Job) -> None:
        if self.wrong is not None:
            raise self.wrong

    async def start(self, job: Job, sink: Any) -> "Inner":
        if self.error is not None:
            raise self.error
        self.sinks.append(sink)
        return self

    def cancel(self) -> None:
        self.cancelled += 1


class Made(ProcessorParts):
    """The part, as a processor calls it."""

    def __init__(self, part: ModelsOnDemand, inner: Inner) -> None:
        parts: dict[str, ProcessorPart] = {PART: part}
        super().__init__(parts)
        self.keeper, self._inner = part.keeper, inner

    async def ask(self, job: Job, sink: Any) -> Any:
        return await self.around(self._inner.start)(job, sink)


@asynccontextmanager
async def backend(timeout: float | None = 60.0) -> AsyncIterator[tuple[Made, Inner, Workers]]:
    workers, inner = Workers(), Inner()
    models = {name: ModelSettings(component=name) for name in ("a", "b")}
    async with System() as system:
        keeper = ModelKeeper(models, Budget(models=1), workers, workers.serves)
        ref = system.start("models", lambda: keeper)
        await system.ready(ref, timeout=5.0)
        names = {"a": "a", "b": "b", "first": "a"}
        unused: Any = None
        context = ProcessorContext(
            View(cast("Any", MemoryRegistry(Random(1)))),
            unused,
            inner.cards,
            lambda work, _name: asyncio.ensure_future(work),
            lambda _watcher: None,
            *(unused, unused, unused, unused, inner.check, timeout),
        )
        part = ModelsOnDemand(context, keeper, ref, names, {"a": "dyn://a.b.c"})
        yield Made(part, inner), inner, workers


def job(model: str = "a", **fields: Any) -> Job:
    return Job("1", cast("Any", None), msgspec.convert({"model": model, **fields}, EngineFields), b"{}")


def held(made: Made) -> tuple[int, int]:
    one = made.keeper.published.of("a")
    return one.running, one.waiting


@virtual
async def test_a_request_holds_its_model_until_its_last_choice_is_complete() -> None:
    async with backend() as (made, inner, _):
        run = await made.ask(job(), cast("Any", (sink := Sink())))
        assert held(made) == (1, 0)
        (inside,) = inner.sinks
        inside.started(2, 5, {})
        inside.text(0, "x", 1)
        inside.finish(0, "stop", 1)
        await asyncio.sleep(0.1)
        assert held(made) == (1, 0)
        inside.finish(1, "stop", 1)
        await asyncio.sleep(0.1)
        assert held(made) == (0, 0)
        assert sink.calls == ["started", "text", "finish", "finish"]
        run.cancel()
        await asyncio.sleep(0.1)
        assert held(made) == (0, 0)


@virtual
async def test_a_request_that_fails_or_whose_client_leaves_holds_nothing() -> None:
    async with backend() as (made, inner, _):
        await made.ask(job(), cast("Any", Sink()))
        inner.sinks[0].fail(EngineFailed("gone"))
        run = await made.ask(job(), cast("Any", Sink()))
        run.cancel()
        assert inner.cancelled == 1
        inner.error = BadRequest("too long")
        with pytest.raises(BadRequest):
            await made.ask(job(), cast("Any", Sink()))
        waiting = asyncio.ensure_future(made.ask(job("b"), cast("Any", Sink())))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.1)
        assert held(made) == (0, 0)
        assert (made.keeper.published.of("b").running, made.keeper.published.of("b").waiting) == (0, 0)


@virtual
async def test_who_waits_too_long_is_told_how_long_a_load_takes() -> None:
    async with backend(timeout=2.0) as (made, _, workers):
        workers.start = 9.0
        with pytest.raises(Overloaded, match="not ready within 2 s") as caught:
            await made.ask(job(), cast("Any", Sink()))
        assert caught.value.retry_after == pytest.approx(2.0, abs=0.1), "as long as it has taken so far"
        await asyncio.sleep(10.0)
        run = await made.ask(job(), cast("Any", Sink()))
        run.cancel()
        with pytest.raises(Overloaded) as caught:
            await made.ask(job("b"), cast("Any", Sink()))
        await asyncio.sleep(10.0)
        with pytest.raises(Overloaded) as caught:
            await made.ask(job("a"), cast("Any", Sink()))
        assert caught.value.retry_after == pytest.approx(9.0 - 1.8, abs=0.5), "what is left of a load like the last"


@virtual
async def test_wrong_requests_load_nothing() -> None:
    async with backend() as (made, inner, workers):
        inner.wrong = BadRequest("too long")
        with pytest.raises(BadRequest, match="too long"):
            await made.ask(job(), cast("Any", Sink()))
        inner.wrong = None
        with pytest.raises(BadRequest, match="is no time"):
            await made.ask(job(keep_alive="soon"), cast("Any", Sink()))
        assert workers.scaled == []


@virtual
async def test_names_endpoints_and_models_of_other_graphs() -> None:
    async with backend() as (made, inner, workers):
        models = made.named(inner.cards())
        assert sorted(models) == ["a", "b", "elsewhere", "first", "x"]
        assert models["first"].name == "a"
        assert made.places(models) == {"dyn://a.b.c"}
        assert await made.ask(job("elsewhere"), cast("Any", Sink())) is inner
        assert workers.scaled == []


@virtual
async def test_an_adapter_holds_the_model_below_it() -> None:
    async with backend() as (made, inner, workers):
        await made.ask(job("x"), cast("Any", Sink()))
        assert held(made) == (1, 0)
        assert workers.scaled == [("a", 1)]
        inner.sinks[0].fail(EngineFailed("gone"))
        await asyncio.sleep(0.1)
        assert held(made) == (0, 0)


@virtual
async def test_a_feature_holds_a_model_while_it_needs_a_worker() -> None:
    async with backend() as (made, _, workers):
        async with made.held("elsewhere"):
            assert workers.scaled == []
        async with made.held("a"):
            assert workers.scaled == [("a", 1)]
            assert held(made) == (1, 0)
        with pytest.raises(BadRequest, match="no adapter"):
            async with made.held("a"):
                raise BadRequest("no adapter")
        await asyncio.sleep(0.1)
        assert held(made) == (0, 0)


@virtual
async def test_a_model_is_loaded_for_a_time_and_unloaded_by_hand() -> None:
    async with backend() as (made, _, _):
        part = cast("ModelsOnDemand", made[PART])
        assert not await part.load_model("elsewhere")
        assert not await part.unload_model("elsewhere")
        assert await part.load_model("first", "10s")
        await asyncio.sleep(0.1)
        report = made.keeper.published.of("a")
        assert (report.state, report.running) == ("ready", 0)
        assert report.expires_in == pytest.approx(9.9, abs=0.1)
        await asyncio.sleep(11.0)
        assert made.keeper.published.of("a").state == "unloaded"
        assert await part.load_model("a", -1)
        await asyncio.sleep(0.1)
        assert made.keeper.published.of("a").expires_in is None
        assert await part.unload_model("first")
        await asyncio.sleep(1.0)
        assert made.keeper.published.of("a").state == "unloaded"
        with pytest.raises(BadRequest, match="keep_alive"):
            await part.load_model("a", "soon")
