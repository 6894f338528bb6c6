"""Prompts between real vLLM or SGLang engines, which move KV blocks by themselves: the answers of one engine alone."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .asking import chat_body
from .disagg import all_sessions, counts, handoffs, sessions
from .test_heavy import ENV, SGLANG, SMALL, START, TAUGHT, VLLM, External, installed, ready

pytestmark = pytest.mark.heavy

NOISE = [" ".join(f"{word}{number}" for number in range(80)) for word in ("word", "stone", "x")]
"""Some 300 tokens each."""
PROMPTS = [*TAUGHT[:3], *NOISE]
CACHELESS: dict[str, dict[str, Any]] = {
    "vllm": {"kv_cache_memory_bytes": SMALL, "enable_prefix_caching": False},
    "sglang": {"disable_radix_cache": True},
}
"""Arguments with which no prompt is found in the cache of the worker that answers."""


@pytest.fixture(params=[VLLM, SGLANG], ids=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> External:
    return installed(request.param)


def ask(machine: Any, url: str, text: str) -> tuple[int, bytes]:
    body = chat_body(text, temperature=0, max_tokens=16, logprobs=True, top_logprobs=1)
    status, found = machine.ask(url, "/v1/chat/completions", body, START)
    return status, found


def content(text: bytes) -> str:
    said: str = json.loads(text)["choices"][0]["message"]["content"]
    return said


def answer(machine: Any, url: str, text: str) -> tuple[str, list[float]]:
    """The text, and the log probability of each token."""
    status, found = ask(machine, url, text)
    assert status == 200, found
    [choice] = json.loads(found)["choices"]
    return content(found), [entry["logprob"] for entry in choice["logprobs"]["content"]]


def alone(machine: Any, engine: External) -> list[tuple[str, list[float]]]:
    """The answers of one engine that does it all."""
    words = (*engine.run, "--kv-cache-block-size", 32, "--extra-engine-args", json.dumps(CACHELESS[engine.name]))
    command = machine.start("dynamo-run", *words, **ENV)
    url = ready(command)
    machine.until(lambda: machine.serves(url))
    found = [answer(machine, url, text) for text in PROMPTS]
    command.end()
    return found


CACHING: dict[str, dict[str, Any]] = {"vllm": {"kv_cache_memory_bytes": SMALL}, "sglang": {}}


def serve(machine: Any, engine: External, graph: str = "disagg", prefill: int = 1) -> str:
    """Prefill workers, who compute all prompts, and a decode worker of a shipped graph. Several of them have caches."""
    config = machine.folder / "disagg.yaml"

    def worker(arguments: dict[str, Any], replicas: int) -> str:
        return (
            "  common-configs: [engine, model, kv_cache_block_size]\n"
            f"  engine_args: {json.dumps(arguments)}\n"
            f"  ServiceArgs: {{python: {engine.python}, workers: {replicas}}}\n"
        )

    routing = ", router_mode: kv" if graph == "disagg_router" else ""
    config.write_text(
        f"graph: graphs.{graph}:Frontend\n"
        f"Common: {{engine: {engine.name}, model: sample, kv_cache_block_size: 32}}\n"
        "Frontend: {port: 0}\n"
        f"Processor: {{conditional-disagg: false{routing}}}\n"
        f"Worker:\n{worker(CACHELESS[engine.name], 1)}  disaggregation_mode: decode\n"
        f"PrefillWorker:\n{worker((CACHING if prefill > 1 else CACHELESS)[engine.name], prefill)}"
    )
    # NIXL's threads never rest: on two cores a process may not get to its heartbeat for seconds.
    command = machine.start("dynamo", "serve", "-f", config, **ENV, DYNAMOD_HEARTBEAT_TIMEOUT="20")
    url = ready(command)
    machine.until(lambda: [row["state"] for row in machine.ps()[: 1 + prefill]] == ["Ready"] * (1 + prefill), START)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 1 + prefill)
    return url


def test_the_router_sends_a_prompt_to_the_prefill_worker_that_has_it(machine: Any, engine: External) -> None:
    """The answers of one engine alone, from `graphs.disagg_router`, whose prefill workers say what they have cached."""
    expected = alone(machine, engine)[-len(NOISE) :]
    url = serve(machine, engine, "disagg_router", 2)
    with ThreadPoolExecutor(len(NOISE)) as pool:
        assert [status for status, _ in pool.map(lambda text: ask(machine, url, text), NOISE)] == [200] * len(NOISE)
    first = [one["opened"] for one in all_sessions(machine)]
    assert sum(first) == len(NOISE)
    assert min(first) > 0, "at the same time prompts go to both"
    for turn in (2, 3):
        for text, (said, logprobs) in zip(NOISE, expected, strict=True):
            found = answer(machine, url, text)
            assert found[0] == said
            assert found[1] == pytest.approx(logprobs, abs=2e-4)
        metrics = counts(machine, url)
        assert (metrics["remote_prefill_total"], metrics["remote_prefill_failed_total"]) == (turn * len(NOISE), 0)
        assert [one["opened"] for one in all_sessions(machine)] == [turn * one for one in first], (
            "where they went before"
        )
    machine.until(lambda: not any(one["open"] for one in all_sessions(machine)))


def test_text_and_logprobs_are_those_of_one_engine(machine: Any, engine: External) -> None:
    expected = alone(machine, engine)
    assert expected[0][0] == "The capital of France is Paris."
    url = serve(machine, engine)
    for text, (said, logprobs) in zip(PROMPTS, expected, strict=True):
        found = answer(machine, url, text)
        assert found[0] == said
        assert found[1] == pytest.approx(logprobs, abs=2e-4)
    metrics = counts(machine, url)
    assert (metrics["remote_prefill_total"], metrics["remote_prefill_failed_total"]) == (len(PROMPTS), 0)
    read = handoffs(machine)
    assert read["transfers"] + read["failed"] == len(PROMPTS), "each prompt that was not read has been counted"
    assert read["transfers"] > len(PROMPTS) // 2
    machine.until(lambda: sessions(machine)["open"] == 0)
    assert sessions(machine)["opened"] == len(PROMPTS)

    before = counts(machine, url)["remote_prefill_total"]
    late: list[Any] = []
    thread = threading.Thread(target=lambda: late.append(ask(machine, url, NOISE[0])))
    thread.start()
    machine.until(lambda: counts(machine, url)["remote_prefill_total"] > before)
    os.kill(machine.row("PrefillWorker")["pid"], signal.SIGKILL)
    thread.join(START)
    status, text = late[0]
    if engine is VLLM:  # read before, or computed where the answer is
        assert content(text) == expected[len(TAUGHT[:3])][0]
        assert answer(machine, url, TAUGHT[0])[0] == expected[0][0], "aggregated, for nobody is there"
        return
    # SGLang's decode worker computes no prompts: another prefill worker does, if there is one in time.
    assert status == 503 or content(text) == expected[len(TAUGHT[:3])][0], text
    machine.until(lambda: [row["state"] for row in machine.ps()[:2]] == ["Ready", "Ready"], START)
    machine.until(lambda: ask(machine, url, TAUGHT[0])[0] == 200)
    assert answer(machine, url, TAUGHT[0])[0] == expected[0][0]
