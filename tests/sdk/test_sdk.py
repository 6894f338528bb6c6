"""The parts of the Python client API, each alone: handlers, contexts, decorators, signals, names."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from dynamod.actor.testing import virtual
from dynamod.engine.python.context import Context
from dynamod.engine.python.handler import GRACE, Handler
from dynamod.message import tokens
from dynamod.message.errors import BadRequest, UserError
from dynamod.message.ingress import Failed, Items
from dynamod.sdk.decorators import dynamo_endpoint, dynamo_worker
from dynamod.sdk.signals import Signals

from .calling import called


class Handlers:
    async def many(self, request: Any) -> AsyncIterator[Any]:
        for item in request:
            yield item

    async def one(self, request: Any) -> Any:
        return {"got": request}

    async def with_context(self, request: Any, context: Context) -> AsyncIterator[Any]:
        yield {"id": context.id()}

    async def any_name(self, request: Any, ctx: Context) -> Any:
        return ctx.id()

    async def optional(self, request: Any, context: Context | None = None) -> Any:
        return context.id() if context else None

    async def further(self, request: Any, retries: int = 3) -> Any:
        return retries


@pytest.mark.parametrize(
    ("name", "request_", "items"),
    [
        ("many", [1, "two", None, {"three": [3.0]}], [1, "two", None, {"three": [3.0]}]),
        ("many", [], []),
        ("one", "x", [{"got": "x"}]),
        ("with_context", None, [{"id": "r1"}]),
        ("any_name", None, ["r1"]),
        ("optional", None, ["r1"]),
        ("further", None, [3]),
    ],
)
@virtual
async def test_what_a_handler_may_look_like(name: str, request_: Any, items: list[Any]) -> None:
    said, _ = await called(getattr(Handlers(), name), request_)
    assert [item for delta in said for item in delta.items] == items
    assert said[-1].finish == "stop"


@virtual
async def test_functions_partials_and_callable_objects_are_handlers() -> None:
    class Callable_:
        async def __call__(self, request: Any) -> Any:
            return request

    async def returns_a_stream(request: Any) -> AsyncIterator[Any]:
        return Handlers().many(request)

    for handler, request in ((Callable_(), 5), (lambda request: Handlers().one(request), 5), (returns_a_stream, [5])):
        said, _ = await called(handler, request)
        assert said[0].items[0] in (5, {"got": 5})


def test_what_no_handler_is() -> None:
    def blocks(request: Any) -> Any:
        yield request

    with pytest.raises(UserError, match="blocks is a generator that blocks its process"):
        Handler(blocks)
    with pytest.raises(UserError, match="cannot be called"):
        Handler("generate")  # type: ignore[arg-type]


@virtual
async def test_an_error_of_the_handler_ends_its_request(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Any) -> AsyncIterator[Any]:
        yield 1
        raise ValueError("no such adapter")

    async def refuses(request: Any) -> Any:
        raise BadRequest("too long", param="prompt", code="context_length_exceeded")

    async def times_out(request: Any) -> Any:
        async with asyncio.timeout(1):
            await asyncio.Event().wait()

    said, _ = await called(broken)
    assert said[0] == Items(1, 0, (1,))
    assert isinstance(said[1], Failed)
    assert (said[1].error, said[1].retry) == ("EngineFailed", False)
    assert said[1].message.endswith("broken: ValueError: no such adapter")
    assert "broken failed (request r1)" in caplog.text
    for error, kind in ((ValueError, "Internal"), (KeyError, "Internal"), (RuntimeError, "EngineFailed")):

        async def secret(_: Any, error: type[Exception] = error) -> AsyncIterator[Any]:
            raise error("boom /etc/x")
            yield

        said, _ = await called(secret, private=True)
        assert (said[0].error, "boom" in said[0].message, error.__name__ in said[0].message) == (kind, False, True)
        assert "boom /etc/x" in caplog.text
    said, _ = await called(refuses)
    assert said == [Failed(1, "BadRequest", "too long", "prompt", False, "context_length_exceeded")]
    said, _ = await called(times_out)
    assert said[0].message.endswith("times_out: TimeoutError: ")


@virtual
async def test_a_reader_that_leaves_stops_the_context_and_then_the_handler() -> None:
    seen: list[Any] = []

    async def deaf(request: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def stubborn(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.1)
        finally:
            seen.append((context.is_stopped(), context.is_killed()))

    async def attentive(request: Any, context: Context) -> AsyncIterator[Any]:
        await asyncio.wait([context.async_killed_or_stopped()])
        await asyncio.sleep(0.5)
        seen.append("freed")
        yield "nobody reads this"

    said, took = await called(deaf, leave_after=1.05)
    assert seen == ["cancelled"]
    assert took == pytest.approx(1.05, abs=0.02)
    assert all(isinstance(delta, Items) for delta in said)
    seen.clear()
    _, took = await called(stubborn, leave_after=1)
    assert seen == [(True, True)]
    assert took == pytest.approx(1 + GRACE, abs=0.02)
    seen.clear()
    said, took = await called(attentive, leave_after=1)
    assert seen == ["freed"]
    assert took == pytest.approx(1.5, abs=0.02)
    assert said == []


@virtual
async def test_contexts() -> None:
    context = Context("mine")
    assert (context.id(), context.is_stopped(), context.is_killed()) == ("mine", False, False)
    assert Context().id() != Context().id()
    given_up = context.async_killed_or_stopped()
    waits = context.async_killed_or_stopped()
    given_up.cancel()
    await asyncio.sleep(0)
    context.stop_generating()
    context.stop_generating()
    await waits
    assert (context.is_stopped(), context.is_killed()) == (True, False)
    assert context.async_killed_or_stopped().done()
    context.kill()
    assert context.is_killed()


# Decorators.


class Question(BaseModel):
    text: str
    times: int = 1


class Typed:
    @dynamo_endpoint(Question, str)
    async def generate(self, request: Question) -> AsyncIterator[str]:
        for _ in range(request.times):
            yield request.text

    @dynamo_endpoint(Question, str)
    async def stops(self, request: Question, context: Context) -> AsyncIterator[str]:
        yield f"{request.text} {context.id()}"


@dynamo_endpoint(Question, str)
async def alone(request: Question) -> str:
    return request.text


@pytest.mark.parametrize(
    "request_", [{"text": "a", "times": 2}, '{"text": "a", "times": 2}', Question(text="a", times=2)]
)
@virtual
async def test_a_typed_endpoint_parses_its_request(request_: Any) -> None:
    for handler, items in ((Typed().generate, ["a", "a"]), (Typed().stops, ["a r1"]), (alone, ["a"])):
        said, _ = await called(handler, request_)
        assert [item for delta in said for item in delta.items] == items


@pytest.mark.parametrize("request_", [{"times": 2}, '{"text": 1}', "no JSON"])
@virtual
async def test_a_request_that_does_not_fit_is_a_value_error(request_: Any, caplog: pytest.LogCaptureFixture) -> None:
    items = Typed().generate(request_)
    with pytest.raises(ValueError, match="the request is no Question"):
        await anext(items)
    caplog.set_level(logging.CRITICAL)
    said, _ = await called(Typed().generate, request_)
    assert "ValueError: the request is no Question" in said[0].message


def test_the_decorator_needs_its_parentheses() -> None:
    with pytest.raises(UserError, match="dynamo_worker takes static") as caught:
        dynamo_worker(Typed)  # type: ignore[arg-type]
    assert "parentheses" in caught.value.hint


def test_names_that_are_not_here_say_which_are() -> None:
    import dynamo.llm
    import dynamo.runtime
    import dynamo.sdk

    with pytest.raises(ImportError, match=r"dynamo\.sdk has no DYNAMO_IMAGE here; it has: .*depends.*service"):
        from dynamo.sdk import DYNAMO_IMAGE  # noqa: F401
    with pytest.raises(ImportError, match=r"dynamo\.llm has no HttpService here; it has: .*ModelType.*register_llm"):
        from dynamo.llm import HttpService  # noqa: F401
    with pytest.raises(ImportError, match=r"dynamo\.runtime has no EtcdKvCache here"):
        from dynamo.runtime import EtcdKvCache  # noqa: F401
    from dynamo.runtime import logging as logs

    assert callable(logs.configure_dynamo_logging)
    assert all(hasattr(module, name) for module in (dynamo.llm, dynamo.runtime, dynamo.sdk) for name in module.__all__)


def test_block_hashes_are_those_of_the_router() -> None:
    from dynamo.llm import compute_block_hash_for_seq_py
    from dynamod.kvcache.hashes import local_hashes

    ids = list(range(40))
    assert compute_block_hash_for_seq_py(ids, 16) == local_hashes(tokens.pack(ids), 16)
    assert len(compute_block_hash_for_seq_py(ids, 16)) == 2
    with pytest.raises(UserError, match="kv_block_size is 0"):
        compute_block_hash_for_seq_py(ids, 0)


# Signals.


@virtual
async def test_three_signals() -> None:
    said: list[str] = []
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Signals(asyncio.get_running_loop(), said.append, lambda: said.append("cut")):
        signal.raise_signal(signal.SIGTERM)
        assert said == []  # the loop hears of it first
        await asyncio.sleep(0.1)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        assert said == ["SIGTERM", "cut"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@virtual
async def test_the_second_signal_gets_through_to_a_busy_loop() -> None:
    said: list[str] = []
    with Signals(asyncio.get_running_loop(), said.append, lambda: said.append("cut")):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@virtual
async def test_handlers_of_the_file_stay() -> None:
    before = signal.getsignal(signal.SIGTERM)
    own: Any = lambda number, frame: None  # noqa: E731
    try:
        with Signals(asyncio.get_running_loop(), print, print):
            signal.signal(signal.SIGTERM, own)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
