"""Cards, names and addresses of endpoints: what is published with them, and what is refused."""

import asyncio
from typing import Any

import pytest

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, Endpoint, dynamo_worker
from dynamod.message.errors import UserError

from .echo import Echo

pytestmark = pytest.mark.usefixtures("node", "tasks")


async def endpoint_of(runtime: DistributedRuntime, name: str = "generate") -> Endpoint:
    return runtime.namespace("test").component("backend").endpoint(name)


async def test_a_card_is_published_with_the_instance_and_goes_with_it() -> None:
    cards: list[Any] = []

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        endpoint = await endpoint_of(runtime)
        await register_llm(
            ModelType.Backend,
            endpoint,
            "sample",
            "mine",
            context_length=512,
            kv_cache_block_size=32,
            migration_limit=2,
            user_data={"lora": "a"},
        )
        text = await endpoint_of(runtime, "text")
        await register_llm(ModelType.Completion, text, "org/some-model")
        view = (await runtime.connect()).process_context.view

        async def look() -> None:
            while len(view.models()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            cards.extend(view.models().values())
            runtime.shutdown()

        handler = Echo().generate
        await asyncio.gather(endpoint.serve_endpoint(handler), text.serve_endpoint(handler), look())
        while view.models():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with asyncio.timeout(20):
        await worker()
    mine, text = cards
    assert (mine.name, mine.kind, mine.types, mine.engine) == ("mine", "tokens", ("chat", "completions"), "python")
    assert (mine.context_length, mine.kv_cache_block_size, mine.migration_limit) == (512, 32, 2)
    assert (mine.user_data, mine.capabilities.exact_continuation) == ({"lora": "a"}, True)
    assert mine.mdc_sum
    assert (text.name, text.kind, text.types) == ("org/some-model", "text", ("completions",))
    assert (text.migration_limit, text.capabilities.exact_continuation) == (0, False)


async def test_a_model_name_is_one_model() -> None:
    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        one, other = await endpoint_of(runtime), await endpoint_of(runtime, "other")
        await register_llm(ModelType.Backend, one, "sample")
        await register_llm(ModelType.Chat, other, "sample")

        async def conflict() -> None:
            client = await one.client()
            await client.wait_for_instances(5)
            with pytest.raises(UserError, match=r"the model name 'sample' is taken: python/.* serves it as tokens"):
                await other.serve_endpoint(Echo().generate)
            with pytest.raises(UserError, match="is served already"):
                await register_llm(ModelType.Backend, one, "sample")
            runtime.shutdown()

        await asyncio.gather(one.serve_endpoint(Echo().generate), conflict())

    async with asyncio.timeout(20):
        await worker()


async def test_any_name_will_do_for_a_component() -> None:
    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        places = [("a", "registry"), ("a", "root"), ("a", "sub/part"), ("b", "sub/part")]
        endpoints = [runtime.namespace(space).component(name).endpoint("chat/completions") for space, name in places]

        async def ask() -> None:
            for endpoint in endpoints:
                client = await endpoint.client()
                await client.wait_for_instances(5)
                assert [item async for item in client.random([1], annotated=False)] == [1]
            runtime.shutdown()

        await asyncio.gather(*(endpoint.serve_endpoint(Echo().generate) for endpoint in endpoints), ask())

    async with asyncio.timeout(20):
        await worker()


async def test_addresses_are_checked_at_once() -> None:
    runtime = DistributedRuntime()
    for make in (
        lambda: runtime.namespace("a.b"),
        lambda: runtime.namespace(""),
        lambda: runtime.namespace("a").component("b c"),
        lambda: runtime.namespace("a").component("b").endpoint("c.d"),
    ):
        with pytest.raises(UserError):
            make()
    with pytest.raises(UserError, match="no lease yet"):
        runtime.namespace("a").component("b").endpoint("chat/completions").lease_id()
    await runtime.close()


async def test_a_place_for_the_socket_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_SOCKET", "/proc/nowhere/d.sock")

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        raise AssertionError("not reached")

    with pytest.raises(UserError, match="no place for the control socket"):
        await worker()
