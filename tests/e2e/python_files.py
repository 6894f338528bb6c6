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
import sys

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
