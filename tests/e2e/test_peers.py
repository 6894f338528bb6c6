"""Blocks of a prompt that another worker has: the bits of computing them, whatever becomes of that worker."""

import importlib.util
import itertools
import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dynamod import sample
from tests.precise_model import PRECISE_CACHE, precise

from .nodes import Servers, front, instances, on
from .peers import BLOCKS, EXACT, asked, body, noise, places, read, serve, statistics

ONE, OTHER = "agg_router/Worker.0", "agg_router/Worker.1"

PLAIN: dict[str, Any] = {"logprobs": None, "seed": 7}

llama_cpp = pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp")


def host(machine: Any, process: str) -> dict[str, Any]:
    return dict(statistics(machine, process)["engine"]["host_tier"])


@llama_cpp
@pytest.mark.engine
def test_a_prefix_in_the_device_of_another_worker_comes_with_the_same_bits(machine: Any) -> None:
    command = serve(machine)
    url = command.ready()
    one, other = places(machine, url).values()
    wanted = asked(machine, url, noise(1), one)
    time.sleep(0.5)  # events come to the router
    assert asked(machine, url, noise(1), other) == wanted
    found = read(machine, OTHER)
    assert (found["transfers"], found["blocks"], found["failed"]) == (1, BLOCKS, 0)
    engine = statistics(machine, OTHER)["engine"]
    assert engine["computed_total"] < 40
    assert engine["peer_ms"] > 0
    sessions = statistics(machine, ONE)["handoff"]["sessions"]
    assert (sessions["open"], sessions["held_bytes"], sessions["read"]) == (0, 0, 1)
    connection = machine.unix()
    connection.request("GET", "/v1/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    assert re.search(r"^dynamod_worker_handoff_peers_blocks_total{.*Worker.1.*} 93\.0$", metrics, re.M)
    assert re.search(r"^dynamo_frontend_model_peer_fetch_total{.*} 1\.0$", machine.ask(url, "/metrics")[1], re.M)
    command.end()


@llama_cpp
@pytest.mark.engine
def test_a_prefix_in_the_memory_of_another_worker_comes_with_the_same_bits(machine: Any) -> None:
    command = serve(machine, kv_host_gb=0.1)
    url = command.ready()
    one, other = places(machine, url).values()
    prompt, others = noise(1), itertools.count(2)
    wanted = asked(machine, url, prompt, one)
    assert asked(machine, url, prompt, one) == wanted, "asked for twice: copied to memory"
    machine.until(lambda: host(machine, ONE)["blocks"] >= BLOCKS)

    def comes() -> bool:
        """By measured times, which the load of this machine may spoil: both load and compute it once more then."""
        asked(machine, url, noise(next(others), 1750), one)
        assert asked(machine, url, prompt, one) == wanted
        asked(machine, url, noise(next(others), 1750), one)
        asked(machine, url, noise(next(others), 1750), other)
        time.sleep(0.5)
        assert asked(machine, url, prompt, other) == wanted
        return bool(read(machine, OTHER)["transfers"])

    machine.until(comes)
    found = read(machine, OTHER)
    assert (found["transfers"], found["blocks"], found["failed"]) == (1, BLOCKS, 0)
    assert host(machine, ONE)["loaded"] >= 2 * BLOCKS, "for itself, and for the other one"
    command.end()


def test_it_is_explained(machine: Any) -> None:
    """With mockers, on which a long prompt takes half a second."""
    arguments = json.dumps({"speedup_ratio": 0.05, "num_gpu_blocks": 400})
    command = machine.start(
        *("dynamo", "serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0"),
        *("--Worker.ServiceArgs.workers=2", f"--Worker.engine_args={arguments}", "--Processor.kv_peer_fetch=true"),
    )
    url = command.ready()
    one, other = places(machine, url).values()
    wanted, short = asked(machine, url, noise(1), one, **PLAIN), noise(2, 400)
    asked(machine, url, short, one, **PLAIN)
    time.sleep(0.5)
    assert asked(machine, url, short, other, **PLAIN)
    assert read(machine, OTHER)["transfers"] == 0, "it costs less to compute a short one"
    status, text = machine.ask(url, "/v1/completions", body(noise(1), other, **PLAIN))
    assert (status, json.loads(text)["choices"][0]["text"]) == (200, wanted[0])
    assert (read(machine, OTHER)["transfers"], read(machine, OTHER)["blocks"]) == (1, BLOCKS)
    shown = machine.run("dynamo", "explain", json.loads(text)["id"]).out
    said = r"blocks read from agg_router/Worker.0: it costs 1244 tokens to read them, 1488 without \(it has 93, .* 0\)"
    assert re.search(said, shown), shown
    command.end()


@llama_cpp
@pytest.mark.engine
def test_it_is_killed_at_any_moment(machine: Any) -> None:
    command = serve(machine)
    url = command.ready()
    with ThreadPoolExecutor(1) as pool:
        for number, delay in enumerate((0.0, 0.02, 0.05, 0.09)):
            found, prompt = places(machine, url), noise(10 + number)
            wanted = asked(machine, url, prompt, found[ONE])
            time.sleep(0.3)
            answer = pool.submit(asked, machine, url, prompt, found[OTHER])
            time.sleep(delay)
            pid = process(machine, ONE)
            os.kill(pid, signal.SIGKILL)
            assert answer.result() == wanted
            machine.until(lambda pid=pid: process(machine, ONE) not in (0, pid))
    assert statistics(machine, OTHER)["open"] == 0
    command.end()


def process(machine: Any, name: str) -> int:
    return next((int(row["pid"] or 0) for row in machine.ps("Worker") if row["process"] == name), 0)


class Busy:
    """Two workers: one has a prompt, and computes another one in a step that takes long; so its blocks come late."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self.command = serve(machine, num_blocks=220, step_seconds=60.0)
        self.url = self.command.ready()
        self.one, self.other = places(machine, self.url).values()
        self.wanted = asked(machine, self.url, noise(1), self.one)
        self.pid = process(machine, ONE)
        time.sleep(0.3)

    def ask(self) -> None:
        """The answer of the other one is right."""
        assert asked(self._machine, self.url, noise(1), self.other) == self.wanted

    def while_it_reads(self, number: int) -> None:
        """The one gets a signal in the middle."""
        machine = self._machine
        with ThreadPoolExecutor(2) as pool:
            long = {"max_tokens": 1, "nvext": {"backend_instance_id": self.one}}
            pool.submit(machine.ask, self.url, "/v1/completions", {"model": "sample", "prompt": noise(2, 1700), **long})
            machine.until(lambda: statistics(machine, ONE)["engine"]["running"])
            answer = pool.submit(self.ask)
            machine.until(self.followed)  # a reader that comes after the signal would find it unreachable
            os.kill(self.pid, number)
            try:
                answer.result()
            finally:
                if number == signal.SIGSTOP:
                    os.kill(self.pid, signal.SIGCONT)

    def followed(self) -> bool:
        """Whether a session has its reader."""
        sessions = (statistics(self._machine, ONE)["handoff"] or {}).get("sessions")
        return bool(sessions and sessions["followed"])

    def reads(self) -> bool:
        """Whether a session is open."""
        sessions = (statistics(self._machine, ONE)["handoff"] or {}).get("sessions")
        return bool(sessions and sessions["open"])


@llama_cpp
@pytest.mark.engine
def test_it_dies_while_it_is_read(machine: Any) -> None:
    workers = Busy(machine)
    workers.while_it_reads(signal.SIGKILL)
    found = read(machine, OTHER)
    assert (found["failures"], found["transfers"]) == ({"short": 1}, 0)
    assert statistics(machine, OTHER)["accepted"] == 1, "it was not tried alone, nor sent again"
    workers.command.end()


@llama_cpp
@pytest.mark.engine
def test_it_stops_while_it_is_read(machine: Any) -> None:
    workers = Busy(machine)
    workers.while_it_reads(signal.SIGSTOP)
    found = read(machine, OTHER)
    assert (found["failures"], found["transfers"]) == ({"stalled": 1}, 0)
    assert found["milliseconds"] >= 1000
    machine.until(lambda: not workers.reads(), 5)
    assert statistics(machine, ONE)["handoff"]["sessions"]["held_bytes"] == 0
    workers.command.end()


@llama_cpp
@pytest.mark.engine
def test_it_stops_before_it_is_read(machine: Any) -> None:
    workers = Busy(machine)
    os.kill(workers.pid, signal.SIGSTOP)
    try:
        workers.ask()
    finally:
        os.kill(workers.pid, signal.SIGCONT)
    assert read(machine, OTHER)["transfers"] == 0
    metrics = machine.ask(workers.url, "/metrics")[1]
    assert re.search(r"^dynamo_frontend_model_peer_fetch_failed_total{.*} 1\.0$", metrics, re.M)
    machine.until(lambda: not statistics(machine, ONE)["open"], 5)
    workers.command.end()


@llama_cpp
@pytest.mark.engine
def test_workers_that_are_not_alike(machine: Any) -> None:
    path = machine.folder / "other.gguf"
    data = bytearray(Path(sample.path("sample.gguf")).read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    for number, model in enumerate(("sample.gguf", str(path))):
        arguments = ("--model-name", "sample", "--extra-engine-args", json.dumps(EXACT))
        machine.start("dynamo-run", f"in=dyn://m.w{number}.generate", "out=llamacpp", model, *arguments).ready()
    front = ("--http-port=0", "--router-mode", "kv", "--kv-peer-fetch", "true")
    url = machine.start("dynamo-run", "in=http", "out=auto", *front).ready()
    one, other = places(machine, url).values()
    prompt = noise(1)
    wanted = asked(machine, url, noise(1), other)
    asked(machine, url, noise(2, 1750), other)
    asked(machine, url, prompt, one)
    time.sleep(0.5)
    assert asked(machine, url, prompt, other) == wanted
    handoffs = [
        one["details"]["handoff"] for one in machine.raw("GET", "/v1/inspect")[1] if "feeds" in (one["details"] or {})
    ]
    peers = [one["peers"] for one in handoffs if one and one["peers"]]
    assert [(one["failures"], one["blocks"]) for one in peers] == [({"layout": 1}, 0)]


@llama_cpp
@pytest.mark.engine
def test_over_nodes(machine: Any, shared_servers: Servers) -> None:
    """Over TCP, at the address that leads to the brokers; prompts of several choices, too."""
    _door, url = front(machine, shared_servers, "--router-mode", "kv", "--kv-peer-fetch", "true")
    for node in ("two", "three"):
        arguments = ("--model-name", "sample", "--extra-engine-args", json.dumps({**EXACT, "num_blocks": 480}))
        words = ("in=dyn://m.backend.generate", "out=llamacpp", "sample.gguf", *arguments)
        machine.start("dynamo-run", *words, **on(machine, shared_servers, node)).prints("ready", 60)
    machine.until(lambda: instances(machine, url) == ["three", "two"] and machine.serves(url))
    found = json.loads(machine.ask(url, "/health")[1])["instances"]
    one, other = (next(row["instance_id"] for row in found if row["node"] == node) for node in ("two", "three"))
    prompt = noise(1)
    whole = asked(machine, url, prompt, one)[0]
    time.sleep(0.5)
    status, text = machine.ask(url, "/v1/completions", body(prompt, other, n=3))
    assert status == 200, text
    assert {choice["text"] for choice in json.loads(text)["choices"]} == {whole}
    socket_path = machine.folder / "three/d.sock"
    details = [row.get("details") for row in machine.raw("GET", "/v1/inspect", socket_path=socket_path)[1]]
    [handoff] = [row["handoff"] for row in details if row and row.get("handoff")]
    assert (handoff["peers"]["transfers"], handoff["peers"]["failed"]) == (3, 0), "each choice by itself"


TEXT = " ".join(f"word{number}" for number in range(300))
"""Some 1,200 tokens."""
PART = 1000
"""Tokens of it that must not have been computed again."""
ANSWER: dict[str, Any] = {"max_tokens": 1000, "ignore_eos": True}
ROOM = {"num_blocks": 160, **PRECISE_CACHE}
SAMPLED = pytest.mark.parametrize(
    "how", [{"temperature": 0}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "seeded"]
)


@pytest.fixture
def model(machine: Any) -> str:
    """Says the same in any cells of any worker."""
    return str(precise(machine.folder / "precise.gguf"))


def moved(machine: Any, url: str, wanted: str, how: dict[str, Any]) -> str:
    """The worker of an answer is killed in the middle; returns the one that has completed it."""
    pids = {row["process"]: row["pid"] for row in machine.ps("Worker")}
    stream = machine.stream(url, TEXT, **ANSWER, **how)
    request = stream.id.removeprefix("chatcmpl-")
    [first] = decisions(machine, request)
    os.kill(pids[chosen(first)], signal.SIGKILL)
    stream.read()
    assert (stream.text, stream.error) == (wanted, None)
    _, second = decisions(machine, request)
    return chosen(second)


def decisions(machine: Any, request: str) -> list[dict[str, Any]]:
    found = machine.raw("GET", f"/v1/requests/{request}/decision")[1]
    return [one for one in found if not one["pool"]]


def chosen(decision: dict[str, Any]) -> str:
    """The process."""
    return next(str(one["process"]) for one in decision["candidates"] if one["instance"] == decision["chosen"])


def assert_read(machine: Any, name: str) -> None:
    """A worker has read the prompt, once."""
    found = read(machine, name)
    assert (found["transfers"], found["failed"]) == (1, 0)
    assert found["blocks"] * 16 > PART


@SAMPLED
@llama_cpp
@pytest.mark.engine
def test_an_answer_moves_and_its_blocks_come_from_another_worker(machine: Any, model: str, how: dict[str, Any]) -> None:
    """That one has had the same request before, so it has the blocks of what was answered, too."""
    command = serve(machine, "--Processor.kv-overlap-score-weight=0", workers=3, model=model, **ROOM)
    url = command.ready()
    there = {"backend_instance_id": places(machine, url, 3)[ONE]}
    wanted = machine.chat(url, TEXT, **ANSWER, **how, nvext=there)
    other_work = machine.stream(url, "hello", max_tokens=1500, ignore_eos=True, nvext=there)
    last = moved(machine, url, wanted, how)
    assert last != ONE
    assert_read(machine, last)
    other_work.close()
    command.end()


@SAMPLED
@llama_cpp
@pytest.mark.engine
def test_an_answer_moves_and_its_prompt_comes_from_the_prefill_worker(
    machine: Any, model: str, how: dict[str, Any]
) -> None:
    alone = serve(machine, "--name=alone", workers=1, model=model, **ROOM)
    wanted = machine.chat(alone.ready(), TEXT, **ANSWER, **how)
    alone.end()
    arguments = json.dumps({**EXACT, **ROOM})
    command = machine.start(
        *("dynamo", "serve", "graphs.disagg_router:Frontend", "-f", "configs/disagg_router.yaml", "--Frontend.port=0"),
        f"--Common.model={model}",
        *(f"--Worker.engine_args={arguments}", f"--PrefillWorker.engine_args={arguments}"),
        *("--PrefillWorker.ServiceArgs.workers=1", "--Processor.max-local-prefill-length=64"),
        "--Processor.kv_peer_fetch=true",
        OMP_NUM_THREADS="1",
    )
    url = command.ready()
    prefill, *_ = places(machine, url, 3)
    last = moved(machine, url, wanted, how)
    assert_read(machine, last)
    engine = statistics(machine, prefill)["engine"]
    assert PART < engine["computed_total"] < 2 * PART, "it has computed the prompt once"
    command.end()


@SAMPLED
@llama_cpp
@pytest.mark.engine
def test_an_answer_moves_and_its_prompt_comes_from_a_tier(machine: Any, model: str, how: dict[str, Any]) -> None:
    command = serve(machine, model=model, **{**ROOM, "kv_host_gb": 0.1})
    url = command.ready()
    one, other = places(machine, url).values()
    for _ in range(2):
        wanted = machine.chat(url, TEXT, **ANSWER, **how, nvext={"backend_instance_id": other})
    machine.until(lambda: host(machine, OTHER)["blocks"] * 16 > PART)
    for seed in (2, 3):
        asked(machine, url, noise(seed, 1750), other)
    assert machine.chat(url, TEXT, **ANSWER, **how, nvext={"backend_instance_id": one}) == wanted
    time.sleep(0.5)
    loaded = host(machine, OTHER)["loaded"]
    assert moved(machine, url, wanted, how) == OTHER
    assert (host(machine, OTHER)["loaded"] - loaded) * 16 > PART
    command.end()
