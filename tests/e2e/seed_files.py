"""Python files of the documents, with their bodies filled in. Not a test."""

METRICS = """
import asyncio

from dynamo.runtime import dynamo_worker


@dynamo_worker()
async def worker(runtime):
    client = await runtime.namespace("llama3-1-8b").component("backend").endpoint("load_metrics").client()
    await client.wait_for_instances()
    async for item in await client.random({}):
        print(item.data(), flush=True)


asyncio.run(worker())
"""
CHUNK = (
    '{"id":"1","choices":[{"index":0,"delta":{"content":"The","role":"assistant"}}],"created":1841762283,'
    '"model":"Llama-3.2-1B-Instruct","system_fingerprint":"local","object":"chat.completion.chunk"}'
)
TOKENS = '{"token_ids":[791],"tokens":None,"text":None,"cum_log_probs":None,"log_probs":None,"finish_reason":None}'

STR = f"""
import asyncio

async def generate(request):
    yield {CHUNK}
    for text in (" capital", " of", " France", " is", " Paris", "."):
        await asyncio.sleep(0.01)
        chunk = {CHUNK}
        chunk["choices"][0]["delta"]["content"] = text
        yield chunk
    yield {{"id":"1","choices":[{{"index":0,"delta":{{"content":"","role":"assistant"}},"finish_reason":"stop"}}],
           "created":1841762283,"model":"Llama-3.2-1B-Instruct","system_fingerprint":"local",
           "object":"chat.completion.chunk"}}
"""
TOK = f"""
import asyncio
import pathlib

async def generate(request):
    pathlib.Path(__file__).with_name("request.txt").write_text(repr(request))
    yield {{"token_ids":[request["token_ids"][0]]}}
    await asyncio.sleep(0.01)
    yield {TOKENS}
"""
KEYWORDS = """
import asyncio

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import dynamo_worker


async def generate(request):
    for token in request["token_ids"]:
        yield {"token_ids": [token]}


@dynamo_worker(static=False)
async def worker(runtime):
    endpoint = runtime.namespace("namespace").component("keywords").endpoint("endpoint")
    await register_llm(
        ModelType.Backend,
        endpoint,
        "sample",
        model_name="mine",
        context_length=64,
        kv_cache_block_size=32,
        user_data={"lora": "a"},
    )
    await endpoint.serve_endpoint(generate)


asyncio.run(worker())
"""
