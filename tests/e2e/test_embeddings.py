"""Embeddings by the real commands: OpenAI's client, a worker that is killed, llama.cpp."""

import importlib.util
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest

from .nodes import Servers, front, models, on
from .together import together

assert np.float32, "OpenAI's client imports it when it is first needed, which scenarios in threads would do together"

BUSY = json.dumps({"speedup_ratio": 2})  # requests wait at each worker all the time
ARGUMENTS = json.dumps({"speedup_ratio": 20})


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


@together
def test_openai_client_with_a_mocker(machine: Any) -> None:
    words = ("in=http", "out=mocker", "sample", "--model-name", "mock", "--extra-engine-args", ARGUMENTS)
    command = machine.start("dynamo-run", *words, "--http-port", 0)
    url = command.ready()
    with client(url) as asking:
        texts = ["one", "two", "one"]
        packed = asking.embeddings.create(model="mock", input=texts)
        plain = asking.embeddings.create(model="mock", input=texts, encoding_format="float")
        assert [row.embedding for row in packed.data] == [row.embedding for row in plain.data]
        first, second, third = [row.embedding for row in plain.data]
        assert first == third != second
        assert sum(number * number for number in first) == pytest.approx(1)
        assert plain.usage.prompt_tokens > 0
        assert len(asking.embeddings.create(model="mock", input="x", dimensions=7).data[0].embedding) == 7
        with pytest.raises(openai.BadRequestError, match=r"input\[1\]"):
            asking.embeddings.create(model="mock", input=["one", "one " * 3000])
        [model] = asking.models.list().data
        assert "embeddings" in model.model_extra["types"]
        assert asking.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": "hi"}], max_tokens=3
        ).choices
    status, text = machine.ask(url, "/metrics")
    assert 'endpoint="embeddings",error_type="",model="mock",request_type="unary",status="success"' in "".join(
        ",".join(sorted(line.partition("{")[2].partition("}")[0].split(","))) for line in text.splitlines()
    )
    status, text = machine.ask(url, "/v1/rerank", {"query": "one", "documents": ["two", "one"]})
    assert (status, json.loads(text)["results"][0]["index"]) == (200, 1)
    command.end()


@together
def test_every_request_is_answered_when_one_of_two_workers_is_killed(machine: Any) -> None:
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=mocker", "--Common.model=sample"),
        *("--Frontend.port=0", "--Worker.ServiceArgs.workers=2", f"--Worker.engine_args={BUSY}"),
    )
    url = command.ready()
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"])
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    victim = machine.ps("Worker")[0]["pid"]
    with client(url) as asking:

        def ask(number: int) -> list[list[float]]:
            texts = [f"text {number} {place}" for place in range(40)]
            found = asking.embeddings.create(model="sample", input=texts, encoding_format="float").data
            if number == 10:
                os.kill(victim, signal.SIGSTOP)  # so that it has requests when it is killed
                time.sleep(0.5)
                os.kill(victim, signal.SIGKILL)
            return [row.embedding for row in found]

        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(ask, range(150)))
        assert all(len(rows) == 40 for rows in found)
        machine.until(lambda: command.err.count("moves to another instance") > 0)  # a line comes a moment later
        assert [ask(number) for number in (0, 149)] == [found[0], found[149]]
    command.tree()


@together
def test_vectors_come_from_another_node(machine: Any, servers: Servers) -> None:
    """In one answer more bytes than a message of the broker has."""
    arguments = json.dumps({"speedup_ratio": 0, "embedding_length": 8192})
    _, url = front(machine, servers)
    machine.start(
        *("dynamo-run", "in=dyn://dynamo.far.generate", "out=mocker", "sample", "--extra-engine-args", arguments),
        **on(machine, servers, "two"),
    )
    machine.until(lambda: models(machine, url) == ["sample"])
    with client(url) as asking:
        texts = [f"text {number}" for number in range(100)]
        far = asking.embeddings.create(model="sample", input=texts)
        assert len({tuple(row.embedding) for row in far.data}) == 100
        assert {len(row.embedding) for row in far.data} == {8192}
        [again] = asking.embeddings.create(model="sample", input=texts[77]).data
        assert again.embedding == far.data[77].embedding


OWN = """
from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


async def embed(request):
    for ids in request["token_ids"]:
        yield {"embeddings": [[len(ids), 1.0, 2.0]]}


@dynamo_worker()
async def worker(runtime: DistributedRuntime):
    endpoint = runtime.namespace("dynamo").component("mine").endpoint("generate")
    await register_llm(ModelType.Embedding, endpoint, "sample", "own")
    await endpoint.serve_endpoint(embed)


import asyncio

asyncio.run(worker())
"""


@together
def test_a_file_of_the_users_own(machine: Any) -> None:
    machine.script(OWN, name="my_vectors")
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0).ready()
    machine.until(lambda: '"own"' in machine.ask(url, "/v1/models")[1])
    with client(url) as asking:
        found = asking.embeddings.create(model="own", input=[[5] * 2, [5] * 3], encoding_format="float")
        assert [row.embedding for row in found.data] == [
            pytest.approx([2 / 3, 1 / 3, 2 / 3]),
            pytest.approx([number / 14**0.5 for number in (3, 1, 2)]),
        ]
        assert found.usage.prompt_tokens == 5


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp")
def test_llama_cpp_makes_vectors(machine: Any) -> None:
    words = ("in=http", "out=llamacpp", "sample.gguf", "--http-port", 0, "--", "--embeddings", "--pooling", "mean")
    command = machine.start("dynamo-run", *words, OMP_NUM_THREADS="1")
    url = command.ready()
    with client(url) as asking:
        texts = ["What is the capital of France?", "Who are you? " * 10, "What is the capital of France?"]
        together = [row.embedding for row in asking.embeddings.create(model="sample", input=texts).data]
        alone = [asking.embeddings.create(model="sample", input=text).data[0].embedding for text in texts]
        for one, other in zip(together, alone, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
        assert sum(a * b for a, b in zip(together[0], together[2], strict=True)) == pytest.approx(1, abs=1e-5)
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            asking.embeddings.create(model="sample", input="x", dimensions=7)
        with pytest.raises(openai.NotFoundError, match="does not serve chat"):
            asking.chat.completions.create(model="sample", messages=[{"role": "user", "content": "hi"}])
    status, text = machine.ask(url, "/v1/score", {"text_1": texts[0], "text_2": texts})
    scores = [row["score"] for row in json.loads(text)["data"]]
    assert status == 200
    assert scores == [pytest.approx(1, abs=1e-5), pytest.approx(scores[1]), pytest.approx(1, abs=1e-5)]
    assert scores[1] < 0.999
    command.end()
