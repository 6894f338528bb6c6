"""Real vLLM and SGLang: on another node, and beside another engine with prompts that nobody was taught."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess.locate import locate

from .asking import chat_body
from .nodes import Servers, on
from .test_heavy import ENV, SGLANG, START, TAUGHT, VLLM, External, installed, others, ready

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


def test_blocks_of_all_data_parallel_ranks_are_known(machine: Any) -> None:
    """vLLM chooses the rank of a request; the router hears of the blocks of each."""
    engine = installed(VLLM)
    words = ("--router-mode", "kv", "--kv-cache-block-size", 32, "--", *engine.words, "--data-parallel-size", 2)
    url = ready(machine.start("dynamo-run", *engine.run, *words, **ENV))
    machine.until(lambda: machine.serves(url))
    texts = [f"{number} " + "apple river stone cloud " * 20 for number in range(6)]
    bodies = [chat_body(text, max_tokens=40, ignore_eos=True) for text in texts]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: machine.ask(url, "/v1/chat/completions", body, 120), bodies))
    blocks = sum(json.loads(answer)["usage"]["prompt_tokens"] // 32 for _status, answer in answers)
    assert blocks >= 2 * len(texts)

    def known() -> float:
        connection = machine.unix()
        connection.request("GET", "/v1/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(map(float, re.findall(r"^dynamod_worker_engine_cached_blocks\b.* (\S+)$", text, re.MULTILINE)))

    machine.until(lambda: known() >= blocks, 30, "KV events of both ranks")


def two_heads(machine: Any) -> Path:
    """A model of two heads, for random weights: each of two ranks can have one."""
    folder: Path = machine.folder / "two-heads"
    shutil.copytree(locate("sample"), folder)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 128}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **heads}))
    return folder


def answers_twice(machine: Any, url: str) -> None:
    """The model answers, and again the same."""
    machine.until(lambda: "two-heads" in machine.ask(url, "/v1/models")[1])
    body = chat_body("hello", model="two-heads", max_tokens=20, ignore_eos=True, temperature=0)
    answers = [json.loads(machine.ask(url, "/v1/chat/completions", body, 120)[1]) for _ in range(2)]
    assert answers[0]["usage"]["completion_tokens"] == 20
    assert answers[0]["choices"] == answers[1]["choices"]


def test_one_engine_on_two_nodes(machine: Any, engine: External) -> None:
    """Two halves of each layer, on a node each."""
    folder = two_heads(machine)
    words = [f"out={engine.name}", folder, "--python", engine.python, "--tensor-parallel-size", 2, "--num-nodes", 2]
    words += ["--leader-addr", f"127.0.0.1:{machine.port()}", "--extra-engine-args", '{"load_format": "dummy"}']
    env = {**ENV, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    other = {**env, "DYNAMOD_SOCKET": str(machine.folder / "two.sock"), "DYNAMOD_NODE": "two"}
    follower = machine.start("dynamo-run", "in=none", *words, "--node-rank", 1, "--", *engine.words, **other)
    leader = machine.start(
        *("dynamo-run", "in=http", *words, "--node-rank", 0, "--http-port", 0, "--", *engine.words), **env
    )
    answers_twice(machine, ready(leader))
    follower.prints("ready", START)
    leader.end(bound=10.0)
    follower.end(bound=10.0)


def test_a_follower_that_sglang_starts(machine: Any) -> None:
    """Its own command on the other node: what dynamod sets on a CPU by itself is said there."""
    engine, folder, port = installed(SGLANG), two_heads(machine), machine.port()
    env = {**ENV, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    words = ["-m", "sglang.launch_server", "--model-path", folder, "--tp", 2, "--nnodes", 2, "--node-rank", 1]
    words += ["--dist-init-addr", f"127.0.0.1:{port}", "--trust-remote-code", "--load-format", "dummy"]
    words += ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    words += ["--disable-overlap-schedule", "--disable-cuda-graph", "--page-size", 64, "--skip-tokenizer-init"]
    words += ["--port", machine.port(), "--max-total-tokens", 4096, *engine.words]
    started = machine.environ(SGLANG_USE_CPU_ENGINE="1", **env)
    with subprocess.Popen([engine.python, *map(str, words)], env=started, start_new_session=True) as follower:
        try:
            words = ["out=sglang", folder, "--python", engine.python, "--tensor-parallel-size", 2, "--num-nodes", 2]
            words += ["--leader-addr", f"127.0.0.1:{port}", "--node-rank", 0, "--http-port", 0]
            words += ["--", "--load-format", "dummy", "--max-total-tokens", 4096, *engine.words]
            leader = machine.start("dynamo-run", "in=http", *words, **env)
            answers_twice(machine, ready(leader))
            assert follower.poll() is None
            leader.end(bound=10.0)
        finally:
            os.killpg(follower.pid, signal.SIGKILL)


def prompts() -> list[str]:
    """Twenty, of words that make no sense together."""
    draw = random.Random(20)
    known = ("river stone quick seven under glass paper moon", "never green capital count tool ping city of the")
    words = " ".join(known).split()
    return [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(20)]


def test_differences_begin_where_the_two_best_tokens_are_close(machine: Any, engine: External) -> None:
    fields = {"temperature": 0, "max_tokens": LENGTH}
    texts = {
        name: [machine.chat(url, prompt, model=name, **fields) for prompt in prompts()] for name, url in others(machine)
    }
    url = ready(machine.start("dynamo-run", *engine.run, "--", *engine.words, **ENV))
    equal = 0
    for place, prompt in enumerate(prompts()):
        asked = chat_body(prompt, logprobs=True, top_logprobs=2, **fields)
        status, answer = machine.ask(url, "/v1/chat/completions", asked, 120)
        assert status == 200, answer
        [choice] = json.loads(answer)["choices"]
        for name, theirs in texts.items():
            if choice["message"]["content"] == theirs[place]:
                equal += 1
            else:
                so_far, close = difference(choice["logprobs"]["content"], theirs[place])
                assert close <= CLOSE, f"{prompt!r} differs from {name} behind {so_far!r}"
    assert equal >= 10 * len(texts), "they are the same model"


def difference(entries: list[dict[str, Any]], theirs: str) -> tuple[str, float]:
    """What is said alike, and how far apart the two best tokens behind it are."""
    so_far = ""
    for entry in entries:
        if not theirs.startswith(so_far + entry["token"]):
            best, second = (one["logprob"] for one in entry["top_logprobs"])
            return so_far, best - second
        so_far += entry["token"]
    return so_far, math.inf
