"""What engines in Python tell of their caches, and what indexes make of it: in one process, over a real node."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dynamo.llm import (
    ApproxKvIndexer,
    ForwardPassMetrics,
    FpmDirectPublisher,
    KvEventPublisher,
    KvIndexer,
    KvStats,
    ModelType,
    OverlapScores,
    RadixTree,
    WorkerMetricsPublisher,
    WorkerStats,
    compute_block_hash_for_seq_py,
    register_llm,
)
from dynamo.runtime import Component, DistributedRuntime, Endpoint, dynamo_worker
from dynamod.kvcache.hashes import local_hashes
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.ingress import Items
from dynamod.message.kv_events import ForwardPass, Load, QueuedRequests, ScheduledRequests, unpack
from dynamod.message.worker import Subscribe
from dynamod.transport.base import Sink

pytestmark = pytest.mark.usefixtures("node", "tasks")

IDS = list(range(100, 140))
LOCAL = local_hashes(tokens.pack(IDS), 16)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def echo(request: Any) -> Any:
    yield {"token_ids": request["token_ids"][:1]}


async def serving(script: Callable[[Component, Endpoint], Awaitable[None]]) -> None:
    """A file that serves a model with blocks of 16 tokens while the script runs."""

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        component = runtime.namespace("test").component("cached")
        endpoint = component.endpoint("generate")
        await register_llm(ModelType.Backend, endpoint, "sample", kv_cache_block_size=16)

        async def talk() -> None:
            try:
                await (await endpoint.client()).wait_for_instances(10)
                await script(component, endpoint)
            finally:
                runtime.shutdown()

        await asyncio.gather(endpoint.serve_endpoint(echo), talk())

    async with asyncio.timeout(20):
        await worker()


async def test_what_is_published_is_found_by_an_indexer() -> None:
    async def script(component: Component, endpoint: Endpoint) -> None:
        me = endpoint.lease_id()
        publisher = KvEventPublisher(component, me, 16)
        publisher.publish_stored(1, IDS[:16], [16], [-5], 0)
        indexer = KvIndexer(component, 16)  # comes later: it is told how things stand
        assert indexer.block_size() == 16

        async def has(blocks: int) -> bool:
            return (await indexer.find_matches_for_request(IDS)).scores.get(me, 0) == blocks

        await until(lambda: has(1))
        await asyncio.to_thread(publisher.publish_stored, 2, IDS[16:32], [16], [7], 0, -5)
        await until(lambda: has(2))
        assert await indexer.find_matches(LOCAL) == OverlapScores({me: 2}, [1, 1])
        assert await indexer.find_matches_for_request(IDS, 3) == OverlapScores()
        assert (await indexer.find_matches_for_request([1, *IDS])).scores == {}
        publisher.publish_removed(3, [2**64 - 5, 99])  # the same name without its sign, and one that nobody knows
        await until(lambda: has(0))

    await serving(script)


async def test_an_endpoint_that_ends_is_forgotten_by_indexers() -> None:
    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        component = runtime.namespace("test").component("cached")
        await component.create_service()
        indexer = KvIndexer(component, 16)

        async def script(served: Component, endpoint: Endpoint) -> None:
            KvEventPublisher(served, endpoint.lease_id(), 16).publish_stored(1, IDS, [16, 16], [1, 2])
            await until(found)

        async def found() -> bool:
            return bool((await indexer.find_matches_for_request(IDS)).scores)

        async def lost() -> bool:
            return not await found()

        await serving(script)
        await until(lost)

    async with asyncio.timeout(20):
        await worker()


async def test_mistakes_of_publishers(caplog: pytest.LogCaptureFixture) -> None:
    async def script(component: Component, endpoint: Endpoint) -> None:
        me = endpoint.lease_id()
        with pytest.raises(UserError, match=rf"worker_id is 12, this process is {me}"):
            KvEventPublisher(component, 12, 16)
        with pytest.raises(UserError, match=r"blocks of 32 tokens, model 'sample' has 16") as caught:
            KvEventPublisher(component, me, 32)
        assert caught.value.hint == "register_llm(..., kv_cache_block_size=32)"
        with pytest.raises(UserError, match="kv_block_size is 0"):
            KvEventPublisher(component, me, 0)
        publisher = KvEventPublisher(component, me, 16)
        with pytest.raises(UserError, match="2 block_hashes and 1 num_block_tokens"):
            publisher.publish_stored(1, IDS, [16], [1, 2])
        with pytest.raises(UserError, match="token_ids is no list of whole numbers"):
            publisher.publish_stored(1, ["a"], [1], [1])  # type: ignore[list-item]
        with pytest.raises(UserError, match="a token id is no 32-bit number"):
            publisher.publish_stored(1, [2**40] * 16, [16], [1])
        indexer = KvIndexer(component, 16)
        publisher.publish_stored(1, IDS, [16], [9], 4)
        publisher.publish_stored(2, IDS, [16], [10], 0, 77)
        publisher.publish_stored(3, IDS, [16, 8], [1, 2])
        await until(lambda: _scores(indexer, {me: 1}))
        for text in ("adapters", "their parent block 77 is not known", "a block of 8 tokens is not published"):
            assert text in caplog.text

    await serving(script)
    with pytest.raises(UserError, match="no lease yet"):
        KvEventPublisher(DistributedRuntime().namespace("n").component("c"), 1, 16)


async def _scores(indexer: KvIndexer, expected: dict[int, int]) -> bool:
    return (await indexer.find_matches_for_request(IDS)).scores == expected


async def test_a_model_with_blocks_of_another_size_is_not_served() -> None:
    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        component = runtime.namespace("test").component("cached")
        endpoint = component.endpoint("generate")
        await register_llm(ModelType.Backend, endpoint, "sample", kv_cache_block_size=64)
        KvEventPublisher(component, endpoint.lease_id(), 16)
        await endpoint.serve_endpoint(echo)

    with pytest.raises(UserError, match="publishes blocks of 16 tokens, model 'sample' has 64"):
        async with asyncio.timeout(20):
            await worker()


def metrics(**changed: Any) -> ForwardPassMetrics:
    return ForwardPassMetrics(
        worker_stats=WorkerStats(request_active_slots=2, request_total_slots=8, num_requests_waiting=3),
        kv_stats=KvStats(
            **{
                "kv_active_blocks": 40,
                "kv_total_blocks": 100,
                "gpu_cache_usage_perc": 0.4,
                "gpu_prefix_cache_hit_rate": 0.25,
                **changed,
            }
        ),
    )


async def test_load_is_told_in_both_forms() -> None:
    async def script(component: Component, _endpoint: Endpoint) -> None:
        block_registry = component.runtime.connection().block_registry("test", "cached")
        publisher = WorkerMetricsPublisher()
        publisher.publish(metrics())
        assert block_registry.load != Load(2, 3, 40, 100, 0.25), "nobody knows whose it is"
        await publisher.create_endpoint(component)
        assert block_registry.load == Load(2, 3, 40, 100, 0.25)
        publisher.publish(1, 8, 30, 100, 4, 0.3, 0.5)
        assert block_registry.load == Load(1, 4, 30, 100, 0.5)
        await asyncio.to_thread(publisher.publish, metrics(kv_active_blocks=7))
        await asyncio.sleep(0)
        assert block_registry.load.active_blocks == 7
        for wrong in ((metrics(kv_total_blocks=-1),), (metrics(gpu_prefix_cache_hit_rate=7),), (1, 2), (None,)):
            with pytest.raises(UserError):
                publisher.publish(*wrong)

    await serving(script)


STEP = {
    "dp_rank": 0,
    "scheduled_num_prefill_requests": 1,
    "scheduled_sum_prefill_tokens": 600,
    "scheduled_sum_prefill_kv_tokens": 16,
    "scheduled_num_decode_requests": 2,
    "scheduled_sum_decode_kv_tokens": 300,
    "queued_num_prefill_requests": 4,
    "queued_sum_prefill_tokens": 900,
    "queued_num_decode_requests": 0,
    "queued_sum_decode_kv_tokens": 0,
    "wall_time_secs": 0.25,
}


class Told(Sink):
    """Steps that a subscriber is told of."""

    def __init__(self) -> None:
        self.steps: list[ForwardPass] = []

    def delta(self, delta: Any) -> None:
        for item in delta.items if isinstance(delta, Items) else ():
            self.steps += [event for event in unpack(item) if isinstance(event, ForwardPass)]

    def lost(self, why: str) -> None:
        raise AssertionError(why)


async def test_steps_of_an_engine_in_a_python_file() -> None:
    async def script(component: Component, endpoint: Endpoint) -> None:
        connection, told = component.runtime.connection(), Told()
        instance = Instance(
            "test", "cached", "generate", endpoint.lease_id(), {"unix": connection.process_context.plan.server}
        )
        stream = connection.process_context.transport.open(instance, Subscribe("planner", steps=True), told)
        publisher = FpmDirectPublisher(endpoint, str(endpoint.lease_id()), dp_size=2)
        await asyncio.sleep(0.1)
        for _ in range(3):
            await asyncio.to_thread(publisher.publish, **STEP)
        scheduled = ScheduledRequests(1, 600, None, 16, 2, 300)
        expected = ForwardPass(1, 0.25, scheduled, QueuedRequests(4, 900, None, 0, 0))

        async def over() -> bool:
            return bool(told.steps) and told.steps[-1].wall_time == 0

        await until(over)
        assert told.steps[0] == expected
        assert told.steps[-1].counter_id == 3
        stream.cancel()
        for wrong in ({"dp_rank": 2}, {"wall_time_secs": -1.0}, {"queued_sum_prefill_tokens": -1}, {"queued_sum": 1}):
            with pytest.raises(UserError):
                publisher.publish(**{**STEP, **wrong})
        with pytest.raises(UserError, match="worker_id"):
            FpmDirectPublisher(endpoint, "7")
        publisher.shutdown()

    await serving(script)


def event(**data: Any) -> bytes:
    return json.dumps({"event_id": 1, "data": data}).encode()


def stored(*pairs: tuple[int, int], parent: int | None = None) -> bytes:
    return event(stored={"parent_hash": parent, "blocks": [{"block_hash": n, "tokens_hash": h} for n, h in pairs]})


def test_a_radix_tree_takes_the_originals_events() -> None:
    tree, local = RadixTree(), compute_block_hash_for_seq_py(range(64), 16)
    tree.apply_event(1, stored(*zip([11, 12, 13], local, strict=False)))
    tree.apply_event(2, stored((21, local[0])))
    tree.apply_event(2, stored((22, local[1]), parent=21))
    assert tree.find_matches(local) == OverlapScores({1: 3, 2: 2}, [2, 2, 1])
    tree.apply_event(1, event(removed={"block_hashes": [12]}))
    assert tree.find_matches(local) == OverlapScores({1: 1, 2: 2}, [2, 1])
    assert tree.find_matches(local, early_exit=True) == OverlapScores({1: 1, 2: 2}, [2, 1])
    tree.apply_event(2, stored((23, local[2]), parent=22))
    assert tree.find_matches(local, True) == OverlapScores({1: 1, 2: 2}, [2, 1]), "one worker is left: no need to go on"
    with pytest.raises(UserError, match="worker 1 has no block 99"):
        tree.apply_event(1, stored((14, local[3]), parent=99))
    for nonsense in (b"{", b"[]", event(), event(stored={})):
        with pytest.raises(UserError, match="no event of a KV cache"):
            tree.apply_event(1, nonsense)
    tree.clear_all_blocks(2)
    tree.remove_worker(1)
    assert tree.find_matches(local) == OverlapScores()
    tree.apply_event(1, stored((11, local[0])))
    tree.apply_event(1, b'{"event_id": 2, "data": "cleared"}')
    assert tree.find_matches(local) == OverlapScores()


async def test_an_approximate_indexer_remembers_decisions_for_a_while() -> None:
    async def script(component: Component, _endpoint: Endpoint) -> None:
        indexer = ApproxKvIndexer(component, 16, 0.2)
        await indexer.process_routing_decision_for_request(IDS, 0, 5)
        await indexer.process_routing_decision_for_request(list(range(32)), 1, 6)
        assert await indexer.find_matches_for_request(IDS) == OverlapScores({5: 2}, [1, 1])
        assert (await indexer.find_matches_for_request(range(32))).scores == {}

        async def forgotten() -> bool:
            return not (await indexer.find_matches_for_request(IDS)).scores

        await until(forgotten)
        with pytest.raises(UserError, match="ttl_secs"):
            ApproxKvIndexer(component, 16, 0)

    await serving(script)
