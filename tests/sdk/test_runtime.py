"""Runtimes, endpoints and clients in one process: real sockets, a node of its own, and nothing left behind."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dynamo.runtime import Client, Context, DistributedRuntime, Endpoint, dynamo_worker
from dynamod.message.errors import EngineFailed, Overloaded, UserError
from dynamod.sdk import connection as connection_module

from .echo import Echo

pytestmark = pytest.mark.usefixtures("node", "tasks")


Script = Callable[[DistributedRuntime, Endpoint, Client], Awaitable[None]]


async def meet(handler: Any, script: Script, *, static: bool = False, graceful: bool = True) -> None:
    """A worker that serves and another that runs the script; both in this loop, the first ends when the second does."""
    runtimes: list[DistributedRuntime] = []

    @dynamo_worker(static=static)
    async def serves(runtime: DistributedRuntime) -> None:
        runtimes.append(runtime)
        component = runtime.namespace("test").component("backend")
        await component.create_service()
        await component.endpoint("generate").serve_endpoint(handler, graceful_shutdown=graceful)

    @dynamo_worker(static=static)
    async def asks(runtime: DistributedRuntime) -> None:
        endpoint = runtime.namespace("test").component("backend").endpoint("generate")
        try:
            client = await endpoint.client()
            if not static:
                await client.wait_for_instances(5)
            await script(runtimes[0], endpoint, client)
        finally:
            runtimes[0].shutdown()

    async with asyncio.timeout(20):
        await asyncio.gather(serves(), asks())


async def test_all_ways_to_call_an_endpoint() -> None:
    async def script(_runtime: DistributedRuntime, endpoint: Endpoint, client: Client) -> None:
        (number,) = client.instance_ids()
        assert number == endpoint.lease_id()
        for call in (
            client.random([1, 2]),
            client.round_robin([1, 2]),
            client.generate([1, 2]),
            client.direct([1, 2], number),
        ):
            items = [item async for item in await call]
            assert [item.data() for item in items] == [1, 2]
            assert (items[0].event(), items[0].comments(), items[0].id(), items[0].is_error()) == (None,) * 3 + (False,)
        assert [item async for item in client.random(["x"], annotated=False)] == ["x"]
        answers = await client.random([1, 2, 3])
        assert (await anext(answers)).data() == 1
        await answers.aclose()
        assert [item async for item in answers] == []
        with pytest.raises(Overloaded, match=rf"has no instance 12; there are: {number}"):
            await client.direct([1], 12)
        with pytest.raises(UserError, match="cannot send object"):
            client.random(object())

    await meet(Echo().generate, script)


async def test_errors_of_a_handler_reach_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Any) -> AsyncIterator[Any]:
        yield request
        raise KeyError("adapter")

    async def script(_runtime: DistributedRuntime, _endpoint: Endpoint, client: Client) -> None:
        answers = await client.random("a")
        assert (await anext(answers)).data() == "a"
        with pytest.raises(EngineFailed, match="broken: KeyError: 'adapter'"):
            await anext(answers)

    await meet(broken, script)
    assert "broken failed" in caplog.text


async def test_a_stopped_context_or_a_lost_reader_ends_the_handler() -> None:
    echo = Echo()

    async def over() -> None:
        async with asyncio.timeout(3):
            while echo.running:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def script(_runtime: DistributedRuntime, _endpoint: Endpoint, client: Client) -> None:
        context = Context("mine")
        seen = 0
        async for _ in await client.random(None, context=context):
            seen += 1
            if seen == 3:
                context.stop_generating()
        await over()
        assert echo.contexts[0].id() == "mine"
        async for _ in await client.random(None):
            break
        await over()
        await client.random(None)  # nobody reads it
        await echo.begun.wait()
        await over()

    await meet(echo.forever, script)
    assert len(echo.contexts) >= 2
    assert all(context.is_killed() for context in echo.contexts)


async def test_a_handler_that_waits_for_nothing_keeps_nobody_waiting() -> None:
    ended: list[Context] = []

    async def endless(request: Any, context: Context) -> AsyncIterator[int]:
        number = 0
        while not context.is_stopped():
            number += 1
            yield number
        ended.append(context)

    async def script(_runtime: DistributedRuntime, _endpoint: Endpoint, client: Client) -> None:
        one, other = await client.random(), await client.random()
        for answers in (one, other) * 3:
            await anext(answers)
        await one.aclose()
        await anext(other)
        await other.aclose()
        while len(ended) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    await meet(endless, script)


@pytest.mark.parametrize("graceful", [True, False])
async def test_what_is_open_at_the_end(graceful: bool) -> None:
    echo = Echo()

    async def script(runtime: DistributedRuntime, _endpoint: Endpoint, client: Client) -> None:
        seen: list[str] = []
        answers = await client.random(0.3)
        seen.append((await anext(answers)).data())
        runtime.shutdown()
        runtime.shutdown()
        if graceful:
            seen += [item.data() async for item in answers]
            assert seen == ["first", "last"]
        else:
            with pytest.raises(EngineFailed, match=r"test\.backend\.generate ended"):
                await anext(answers)

    await meet(echo.slow, script, graceful=graceful)


async def test_the_grace_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", "0.2")

    async def script(runtime: DistributedRuntime, _endpoint: Endpoint, client: Client) -> None:
        answers = await client.random(60)
        await anext(answers)
        runtime.shutdown()
        with pytest.raises(EngineFailed, match="ended"):
            _ = [item async for item in answers]

    await meet(Echo().slow, script)
    echo = Echo()
    await meet(echo.forever, script)
    assert echo.contexts[0].is_killed()


async def test_a_wrong_grace_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", "soon")

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        raise AssertionError("not reached")

    with pytest.raises(UserError, match="=soon is no number of seconds") as caught:
        await worker()
    assert caught.value.__notes__ == ["for example 30"]


async def test_a_static_worker_is_found_without_discovery() -> None:
    async def script(runtime: DistributedRuntime, endpoint: Endpoint, client: Client) -> None:
        async with asyncio.timeout(5):
            while not client._static:  # noqa: ASYNC110 - nobody tells when a static worker is there
                await asyncio.sleep(0.01)
        assert client.instance_ids() == []
        assert [item.data() async for item in await client.static([1, 2])] == [1, 2]
        with pytest.raises(Overloaded, match=r"no instance of dyn://test\.backend\.generate is ready"):
            await client.random([1])
        again = DistributedRuntime(asyncio.get_running_loop(), True)
        with pytest.raises(UserError, match="served by this process already"):
            await again.namespace("test").component("backend").endpoint("generate").serve_endpoint(Echo().generate)
        await again.close()

    await meet(Echo().generate, script, static=True)


async def test_one_connection_for_all_and_a_new_one_after_the_last() -> None:
    leases: list[int] = []

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime, pause: float, *, answer: str) -> str:
        endpoint = runtime.namespace("n").component("c").endpoint("e")
        assert await endpoint.client() is not None
        leases.append(endpoint.lease_id())
        await asyncio.sleep(pause)
        assert len(connection_module._connections) == 1
        return answer

    async with asyncio.timeout(20):
        assert await asyncio.gather(*(worker(pause, answer=f"{pause}") for pause in (0.1, 0.0, 0.2))) == [
            "0.1",
            "0.0",
            "0.2",
        ]
        assert len(set(leases)) == 1
        leaving = worker(0, answer="a")
        assert await asyncio.gather(leaving, worker(0, answer="b")) == ["a", "b"]
    assert len(set(leases)) == 2


async def test_a_worker_that_is_cancelled_or_fails_leaves_nothing() -> None:
    @dynamo_worker()
    async def worker(runtime: DistributedRuntime, fails: bool) -> None:
        endpoint = runtime.namespace("n").component("c").endpoint("e")
        if fails:
            raise RuntimeError("no GPU")
        await endpoint.serve_endpoint(Echo().generate)

    with pytest.raises(RuntimeError, match="no GPU"):
        await worker(True)
    async with asyncio.timeout(20):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(worker(False))
            await asyncio.sleep(0.3)
            task.cancel()
    assert task.cancelled()


async def test_endpoints_that_are_left_behind_end_with_the_worker() -> None:
    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        endpoints = [runtime.namespace("n").component("c").endpoint(name) for name in "ab"]
        serving = asyncio.gather(*(endpoint.serve_endpoint(Echo().generate) for endpoint in endpoints))
        client = await endpoints[1].client()
        await client.wait_for_instances(5)
        again = endpoints[1].serve_endpoint(Echo().generate)
        await asyncio.gather(serving, again)

    @dynamo_worker()
    async def lives(runtime: DistributedRuntime) -> None:
        view = (await runtime.connect()).process_context.view
        with pytest.raises(UserError, match=r"dyn://n\.c\.b is served by this process already"):
            await worker()
        while view.all_instances():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with asyncio.timeout(10):
        await lives()


@pytest.mark.parametrize("served", [False, True])
async def test_a_signal_ends_all_workers(served: bool) -> None:
    seen: list[str] = []
    ready = asyncio.Event()

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        endpoint = runtime.namespace("n").component("c").endpoint("e")
        try:
            if served:
                asyncio.get_running_loop().call_later(0.3, ready.set)
                await endpoint.serve_endpoint(Echo().generate)
            else:
                ready.set()
                await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    async with asyncio.timeout(10):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(worker())
            await ready.wait()
            os.kill(os.getpid(), signal.SIGTERM)
    assert seen == ["cleaned up"]
    assert task.result() is None


# Models.
