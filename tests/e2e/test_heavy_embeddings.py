"""Vectors of texts by real vLLM and SGLang, held against llama.cpp's of the same model."""

import importlib.util
import json
from typing import Any

import numpy as np
import openai
import pytest

from .test_heavy import ENV, START, External, engine

__all__ = ["engine"]

pytestmark = pytest.mark.heavy

WORDS = {"vllm": ("--runner", "pooling"), "sglang": ("--is-embedding",)}
TEXTS = ["The capital of France is Paris.", "apple river stone", "The capital of France is Lima.", "x " * 300]


def vectors(url: str, **fields: Any) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as asking:
        found = asking.embeddings.create(model="sample", input=TEXTS, **fields)
        assert found.usage.prompt_tokens > 300
        return np.array([row.embedding for row in found.data])


def test_vectors(machine: Any, engine: External) -> None:
    command = machine.start("dynamo-run", *engine.run, "--", *WORDS[engine.name], *engine.words, **ENV)
    url = command.ready(START)
    machine.until(lambda: machine.serves(url))
    found = vectors(url)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)
    assert found == pytest.approx(vectors(url, encoding_format="float"), abs=1e-3)
    status, text = machine.ask(url, "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS[1:3]})
    assert status == 200, text
    assert json.loads(text)["results"][0]["document"]["text"] == TEXTS[2]
    status, text = machine.ask(url, "/v1/embeddings", {"model": "sample", "input": "x", "dimensions": 3})
    assert (status, json.loads(text)["error"]["param"]) == (400, "dimensions")
    status, text = machine.ask(url, "/v1/embeddings", {"model": "sample", "input": "x " * 4000})
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")
    assert machine.ask(url, "/v1/completions", {"model": "sample", "prompt": "x"})[0] == 404
    command.end()
    if importlib.util.find_spec("llama_cpp") is not None:
        words = ("in=http", "out=llamacpp", "sample.gguf", "--model-name", "sample", "--http-port", 0)
        command = machine.start("dynamo-run", *words, "--", "--embeddings", "--pooling", "last", **ENV)
        url = command.ready()
        machine.until(lambda: machine.serves(url))
        assert found == pytest.approx(vectors(url), abs=0.01)
        command.end()
