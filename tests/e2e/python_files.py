"""Files as users write them: engines, servers and clients, each started with plain `python`."""

OWN = """
import asyncio
import sys

import uvloop

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


# 1. Decorate a function to get the runtime
#
@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime):

    # 2. Register ourselves on the network
    #
    component = runtime.namespace("namespace").component("component")
    await component.create_service()
    model_path = "sample"
    model_type = ModelType.Backend
    endpoint = component.endpoint("endpoint")
    # Optional last param to register_llm is model_name. If not present derives it from model_path
    await register_llm(model_type, endpoint, model_path)

    # Initialize your engine here
    engine = 0.005

    # 3. Attach request handler
    #
    await endpoint.serve_endpoint(RequestHandler(engine).generate)


class RequestHandler:
    def __init__(self, engine):
        self.pause = engine

    async def generate(self, request):
        # Call the engine
        # yield result dict
        for token in request["token_ids"][: request["stop_conditions"]["max_tokens"]]:
            await asyncio.sleep(self.pause)
            yield {"token_ids": [token]}


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
"""
"""The file of the guide with its body filled in: it says the prompt again."""

CHAT = """
import asyncio

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import dynamo_worker


async def chat(request):
    words = request["messages"][-1]["content"].split()
    if words == ["break"]:
        raise RuntimeError("the engine is broken")
    if words == ["nonsense"]:
        yield "no chunk"
    for word in words:
        yield {"choices": [{"index": 0, "delta": {"content": word.upper() + " "}, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": len(words)}}


async def complete(request):
    return {"choices": [{"index": 0, "text": request["prompt"][::-1], "finish_reason": "length"}]}


@dynamo_worker()
async def worker(runtime):
    component = runtime.namespace("mine").component("talker")
    talk, write = component.endpoint("talk"), component.endpoint("write")
    await register_llm(ModelType.Chat, talk, "org/talker")
    await register_llm(ModelType.Completion, write, "org/writer", user_data={"adapter": "a"})
    await asyncio.gather(talk.serve_endpoint(chat), write.serve_endpoint(complete))
    print("both have ended", flush=True)


asyncio.run(worker())
"""

COUNT = '''
import asyncio
import os
import pathlib
import sys
import time

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import dynamo_worker

graceful = sys.argv[1] == "graceful"


async def generate(request, context):
    """Numbers of three letters: each depends on all ids before it, so a seam would show."""
    ids, left = request["token_ids"], request["stop_conditions"]["max_tokens"]
    print(f"begins behind {len(ids)} ids, {left} to go", flush=True)
    for _ in range(left):
        if context.is_stopped():
            print("stopped", flush=True)
            return
        ids = [*ids, (sum(ids) * 31 + len(ids)) % 900 + 50]
        yield {"token_ids": ids[-1:], "finish_reason": None}
        await asyncio.sleep(0.01)
    yield {"token_ids": [], "finish_reason": "length"}


@dynamo_worker()
async def worker(runtime):
    endpoint = runtime.namespace("mine").component("counter").endpoint("generate")
    await register_llm(ModelType.Backend, endpoint, "sample", migration_limit=3)
    await endpoint.serve_endpoint(generate, graceful_shutdown=graceful)


asyncio.run(worker())
'''

SERVER = """
import asyncio
import os

from pydantic import BaseModel

from dynamo.runtime import dynamo_endpoint, dynamo_worker


class Request(BaseModel):
    text: str


class Handler:
    @dynamo_endpoint(Request, str)
    async def generate(self, request, context):
        for word in request.text.split():
            yield {"word": word, "pid": os.getpid()}


@dynamo_worker(static=__STATIC__)
async def worker(runtime):
    component = runtime.namespace("mine").component("words")
    await component.create_service()
    await component.endpoint("generate").serve_endpoint(Handler().generate)


asyncio.run(worker())
"""

CLIENT = """
import asyncio
import json
import sys

from dynamo.runtime import dynamo_worker


@dynamo_worker()
async def worker(runtime):
    endpoint = runtime.namespace("mine").component("words").endpoint("generate")
    client = await endpoint.client()
    while len(client.instance_ids()) < int(sys.argv[1]):
        await client.wait_for_instances()
        await asyncio.sleep(0.02)
    request = {"text": "a b c"}

    async def pid(call):
        items = [item.data() async for item in await call]
        assert [item["word"] for item in items] == ["a", "b", "c"], items
        return items[0]["pid"]

    seen = {
        "random": [await pid(client.random(request)) for _ in range(20)],
        "round_robin": [await pid(client.round_robin(json.dumps(request))) for _ in range(4)],
        "direct": [await pid(client.direct(request, one)) for one in client.instance_ids() for _ in range(2)],
    }
    try:
        await pid(client.random({"txt": 1}))
    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(seen), flush=True)
    if len(sys.argv) > 2:
        await asyncio.Event().wait()


asyncio.run(worker())
"""

HAMMER = """
import asyncio
from dynamo.runtime import dynamo_worker

@dynamo_worker()
async def worker(runtime):
    client = await runtime.namespace("mine").component("words").endpoint("generate").client()
    while len(client.instance_ids()) < 2:
        await asyncio.sleep(0.02)
    print("begins", flush=True)

    async def call():
        count = 0
        while len(client.instance_ids()) > 1 or count < 50:
            assert len([item async for item in client.round_robin({"text": "a b c"})]) == 3
            count += 1
        return count

    print(sum(await asyncio.gather(*(call() for _ in range(4)))), "calls", flush=True)

asyncio.run(worker())
"""

SHIPPED = """
import asyncio
import json
from dynamo.runtime import dynamo_worker

@dynamo_worker()
async def worker(runtime):
    tokens, text = [await runtime.namespace(name).component("c").endpoint("e").client() for name in ("tokens", "text")]
    await asyncio.gather(tokens.wait_for_instances(), text.wait_for_instances())
    request = {"token_ids": [5, 6, 7, 8], "stop_conditions": {"max_tokens": 3}}
    items = [item.data() async for item in await tokens.round_robin(request)]
    chunks = [item.data() async for item in await text.random({"messages": [{"role": "user", "content": "hello"}]})]
    print(json.dumps([[one for item in items for one in item["token_ids"]], items[-1]["finish_reason"]]))
    print("".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"]))
    try:
        await tokens.random("hello")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

asyncio.run(worker())
"""

ECHO = """
import asyncio
from dynamo.runtime import dynamo_worker

@dynamo_worker(static=True)
async def worker(runtime):
    client = await runtime.namespace("mine").component("words").endpoint("generate").client()
    for _ in range(500):
        try:
            print([item.data()["word"] async for item in await client.static({"text": "a b"})])
            return
        except Exception as error:
            await asyncio.sleep(0.02)
    raise error

asyncio.run(worker())
"""

BLOCKS = """    for _ in range(left):
        block = pathlib.Path(f"block.{os.getpid()}")
        if block.exists():
            block.unlink()
            time.sleep(6)
"""
"""In place of COUNT's loop: the file can be asked to block its event loop, as an engine without a thread does."""

CACHED = """
import asyncio
import json
import os
import pathlib
import threading

from dynamo.llm import (
    ForwardPassMetrics, KvEventPublisher, KvStats, ModelType, WorkerMetricsPublisher, WorkerStats, register_llm
)
from dynamo.runtime import dynamo_worker


def names(ids):
    # any numbers of 64 bits, here with a sign: this engine's own names of its blocks
    return [hash(tuple(ids[: end + 16])) for end in range(0, len(ids) // 16 * 16, 16)]


def store(publisher, ids):
    mine = names(ids)
    publisher.publish_stored(1, ids, [16] * len(mine), mine, 0, None)


@dynamo_worker()
async def worker(runtime):
    component = runtime.namespace("mine").component("cached")
    endpoint = component.endpoint("generate")
    await register_llm(ModelType.Backend, endpoint, "sample", kv_cache_block_size=16)
    publisher = KvEventPublisher(component, endpoint.lease_id(), 16)
    load = WorkerMetricsPublisher()
    await load.create_endpoint(component)
    load.publish(ForwardPassMetrics(
        worker_stats=WorkerStats(request_active_slots=1, request_total_slots=8, num_requests_waiting=0),
        kv_stats=KvStats(
            kv_active_blocks=3, kv_total_blocks=777, gpu_cache_usage_perc=0.1, gpu_prefix_cache_hit_rate=0.5
        ),
    ))

    seen = []

    async def generate(request):
        ids = request["token_ids"]
        if ids not in seen:
            seen.append(ids)
            print("ids", json.dumps(ids), flush=True)
            threading.Thread(target=store, args=(publisher, ids)).start()
        for token in ids[:3]:
            yield {"token_ids": [token]}

    async def listen():  # does to the cache what the test says
        file = pathlib.Path(f"cache.{os.getpid()}")
        while True:
            await asyncio.sleep(0.02)
            if file.exists():
                what, ids = json.loads(file.read_text())
                if what == "store":
                    store(publisher, ids)
                else:
                    publisher.publish_removed(2, names(ids))
                file.unlink()

    listening = asyncio.create_task(listen())
    await endpoint.serve_endpoint(generate)
    listening.cancel()


asyncio.run(worker())
"""
"""An engine that tells of its KV cache."""

LOGS = """
import asyncio
import logging
import sys

from dynamo.runtime import dynamo_worker

log = logging.getLogger("mine.engine")


async def generate(request, context):
    log.info("told %s", request, extra={"beside": 1})
    log.warning("warned of %d%%", 7)
    try:
        raise ValueError("no luck")
    except ValueError:
        log.exception("it failed")
    logging.getLogger("dynamod.mine").warning("as one of ours")
    yield request


@dynamo_worker()
async def worker(runtime):
    endpoint = runtime.namespace("mine").component("logs").endpoint("generate")
    if len(sys.argv) > 1:
        logging.basicConfig(level="INFO", format="mine: %(message)s")  # it works although the node is joined
    await endpoint.serve_endpoint(generate)


@dynamo_worker()
async def asks(runtime):
    client = await runtime.namespace("mine").component("logs").endpoint("generate").client()
    await client.wait_for_instances()
    print([item async for item in client.random("hello", annotated=False)], flush=True)


async def both():
    await asyncio.gather(worker(), asks())

asyncio.run(both())
"""
"""Serves and asks in one process, and logs in between."""

SLOWLY = """for word in request.text.split():
            yield {"word": word}
            await asyncio.sleep(60)
        for word in"""
"""In SERVER: it takes its time between two words."""

WAITS = """
import asyncio
from dynamo.runtime import dynamo_worker

@dynamo_worker()
async def worker(runtime):
    client = await runtime.namespace("mine").component("words").endpoint("generate").client()
    await client.wait_for_instances()
    try:
        async for item in await client.random({"text": "a b"}):
            print(item.data(), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)

asyncio.run(worker())
"""
