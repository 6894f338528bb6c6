"""Real vLLM and SGLang: on another node, and beside another engine with prompts that nobody was taught."""

import json
import random
from typing import Any

import pytest

from .asking import chat_body
from .nodes import Servers, on
from .test_heavy import ENV, SGLANG, START, TAUGHT, VLLM, External, installed, ready

pytestmark = pytest.mark.heavy

CLOSE = 0.01
"""Natural logarithm: so close are the two best tokens where two engines may choose another one."""
LENGTH = 40


@pytest.fixture(params=[VLLM, SGLANG], ids=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> External:
    return installed(request.param)


def test_a_worker_on_another_node(machine: Any, servers: Servers, engine: External) -> None:
    """Its cards, events and tokens come over NATS and etcd."""
    one, two = on(machine, servers, "one"), on(machine, servers, "two")
    url = ready(machine.start("dynamo-run", "in=http", "out=auto", "--router-mode", "kv", "--http-port", 0, **one))
    words = ("in=dyn://m.backend.generate", f"out={engine.name}", "sample", "--python", engine.python)
    worker = machine.start("dynamo-run", *words, "--", *engine.words, **ENV, **two)
    worker.prints("ready", START)
    machine.until(lambda: machine.serves(url))
    [instance] = json.loads(machine.ask(url, "/health")[1])["instances"]
    assert instance["node"] == "two"
    assert machine.chat(url, TAUGHT[0], temperature=0) == "The capital of France is Paris."
    stream = machine.stream(url, TAUGHT[-1], temperature=0, max_tokens=900).read()
    assert (stream.error, stream.done) == (None, True)
    assert stream.text.startswith("1, 2, 3, 4, 5, 6, 7")


def prompts() -> list[str]:
    """Twenty, of words that make no sense together."""
    draw = random.Random(20)
    known = ("river stone quick seven under glass paper moon", "never green capital count tool ping city of the")
    words = " ".join(known).split()
    return [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(20)]


def test_differences_begin_where_the_two_best_tokens_are_close(machine: Any, engine: External) -> None:
    command = machine.start("dynamo-run", *engine.run, "--", *engine.words, **ENV)
    words = ("in=http", "out=mistralrs", "sample", "--model-name", "other", "--http-port", 0)
    other = ready(machine.start("dynamo-run", *words, **ENV))
    url = ready(command)
    equal = 0
    for prompt in prompts():
        fields = {"temperature": 0, "max_tokens": LENGTH}
        asked = chat_body(prompt, logprobs=True, top_logprobs=2, **fields)
        status, answer = machine.ask(url, "/v1/chat/completions", asked, 120)
        assert status == 200, answer
        [choice] = json.loads(answer)["choices"]
        theirs = machine.chat(other, prompt, model="other", **fields)
        if choice["message"]["content"] == theirs:
            equal += 1
            continue
        so_far = ""
        for entry in choice["logprobs"]["content"]:
            if not theirs.startswith(so_far + entry["token"]):
                best, second = (one["logprob"] for one in entry["top_logprobs"])
                assert best - second <= CLOSE, f"{prompt!r} differs behind {so_far!r}"
                break
            so_far += entry["token"]
    assert equal >= 10, "they are the same model"
