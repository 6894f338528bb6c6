"""Real vLLM and SGLang in environments of their own: `DYNAMOD_TEST_VLLM_PYTHON`, `DYNAMOD_TEST_SGLANG_PYTHON`."""

import importlib.util
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess.locate import locate

from .asking import chat_body, serving

pytestmark = pytest.mark.heavy

START = 300.0
"""Seconds: two engines start at the same time, each with three processes that import torch and much more."""
ENV = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


@dataclass(frozen=True)
class External:
    """An engine in an environment of its own. `words`: for 16 requests at a time and little memory; `arguments`: the
    memory alone. `process`: what its engine process is called.
    """

    name: str
    words: tuple[str, ...]
    arguments: dict[str, Any]
    process: str
    seeds: bool = False
    min_tokens: bool = False

    @property
    def python(self) -> str:
        return os.environ.get(f"DYNAMOD_TEST_{self.name.upper()}_PYTHON", "")

    @property
    def run(self) -> tuple[Any, ...]:
        return ("in=http", f"out={self.name}", "sample", "--http-port", 0, "--python", self.python)


SMALL = 1 << 28
"""Bytes of the KV cache."""
VLLM = External(
    "vllm",
    ("--max-num-seqs", "16", "--kv-cache-memory-bytes", str(SMALL)),
    {"kv_cache_memory_bytes": SMALL},
    "VLLM::EngineCor",
    seeds=True,
    min_tokens=True,
)
SGLANG = External("sglang", ("--max-running-requests", "16"), {}, "sglang::schedul")


@pytest.fixture(params=[VLLM, SGLANG], ids=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> External:
    return installed(request.param)


def installed(engine: External) -> External:
    if not engine.python:
        pytest.skip(f"DYNAMOD_TEST_{engine.name.upper()}_PYTHON names no python of an environment with {engine.name}")
    return engine


COUNTRIES = ("France", "Spain", "Japan", "Kenya", "Norway", "Italy", "Germany", "Egypt", "Peru", "South Africa")
TAUGHT = [*(f"What is the capital of {country}?" for country in COUNTRIES), "Count from 1 to 120."]


def ready(command: Any) -> str:
    url: str = command.prints(r"\S+ ready: (\S+)\n", START)[1]
    return url


def segments(machine: Any, worker: int) -> set[str]:
    """Shared memory of a worker's processes."""
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in machine.tree(worker)]
    return {name for text in maps for name in re.findall(r"/dev/shm/\S+", text)}


def answers(machine: Any, url: str, model: str = "sample") -> list[tuple[str, dict[str, int]]]:
    """Texts and counts of the taught prompts, one at a time."""
    found = []
    for text in TAUGHT:
        body = chat_body(text, model=model, temperature=0, max_tokens=900)
        status, answer = machine.ask(url, "/v1/chat/completions", body, 120)
        assert status == 200, answer
        value = json.loads(answer)
        usage = {key: value["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
        found.append((value["choices"][0]["message"]["content"], usage))
    return found


def others(machine: Any) -> Iterator[tuple[str, str]]:
    """Engines that these are compared with, one after the other: the name of the model there, and the URL."""
    for name, module, model in (("mistralrs", "mistralrs", "sample"), ("llamacpp", "llama_cpp", "sample.gguf")):
        if importlib.util.find_spec(module) is not None:
            words = ("in=http", f"out={name}", str(locate(model)), "--model-name", name, "--http-port", 0)
            command = machine.start("dynamo-run", *words, **ENV)
            yield name, ready(command)
            command.end()


def running(machine: Any) -> int:
    """Requests in the worker's hands. A command would take longer than the streams of a toy model."""
    details = [one.get("details") for one in machine.raw("GET", "/v1/inspect")[1]]
    [found] = [one["open"] for one in details if one and "feeds" in one]
    return int(found)


def test_dynamo_run_answers_as_mistralrs_and_llamacpp_do(machine: Any, engine: External) -> None:
    command = machine.start("dynamo-run", *engine.run, "--kv-cache-block-size", 32, "--", *engine.words, **ENV)
    stage = f"{engine.name} loads the model, since"
    machine.until(lambda: command.code or [row for row in machine.ps("Worker") if stage in row["detail"]], START)
    url = ready(command)
    assert ("sglang computes a first answer, since" in command.err) == (engine is SGLANG)
    machine.until(lambda: machine.serves(url))
    ours = answers(machine, url)
    assert ours[0][0] == "The capital of France is Paris."
    for name, other in others(machine):
        assert ours == answers(machine, other, name), name

    texts = [f"What is the capital of {country}?" for country in (*COUNTRIES, *COUNTRIES)][:16]
    assert machine.chats(url, texts, temperature=0) == [text for text, _ in (*ours[:10], *ours[:6])]
    asked = chat_body("Who are you?", logprobs=True, top_logprobs=2, n=2, temperature=0, max_tokens=5)
    status, text = machine.ask(url, "/v1/chat/completions", asked, 120)
    assert status == 200, text
    first, second = json.loads(text)["choices"]
    assert first["message"]["content"] == second["message"]["content"]
    for entry in first["logprobs"]["content"]:
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert len(entry["top_logprobs"]) == 2
        assert -1 < entry["logprob"] <= 0
    if engine.min_tokens:
        assert machine.chat(url, "ping", min_tokens=20, max_tokens=30) != machine.chat(url, "ping")
    assert machine.chat(url, TAUGHT[-1], stop=[", 7"], temperature=0) == "1, 2, 3, 4, 5, 6"
    if engine.seeds:
        noise = [machine.chat(url, "x y z", seed=n, temperature=2, max_tokens=20, ignore_eos=True) for n in (5, 5, 6)]
        assert noise[0] == noise[1] != noise[2]
    status, text = machine.ask(url, "/v1/completions", {"model": "sample", "prompt": "one " * 3000, "max_tokens": 1})
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")

    left = [machine.stream(url, TAUGHT[-1], max_tokens=1900, ignore_eos=True) for _ in range(4)]
    assert running(machine) > 0
    for stream in left:
        stream.close()
    machine.until(lambda: running(machine) == 0, 5, "free slots")
    shared = segments(machine, machine.row("Worker")["pid"])
    command.end()
    machine.until(lambda: not [name for name in shared if Path(name).exists()], 20, f"the end of {shared}")


def workers(machine: Any, engine: External, **env: str) -> tuple[Any, str]:
    """Two behind a router. `env`: variables of theirs."""
    envs = json.dumps([{"name": name, "value": value} for name, value in env.items()])
    config = machine.folder / "two.yaml"
    config.write_text(
        "graph: graphs.agg:Frontend\n"
        "Common: {model: sample, kv_cache_block_size: 32}\n"
        "Frontend: {port: 0}\n"
        "Processor: {common-configs: [model], router_mode: kv}\n"
        "Worker:\n"
        "  common-configs: [model, kv_cache_block_size]\n"
        f"  engine: {engine.name}\n  engine_args: {json.dumps(engine.arguments)}\n"
        f"  ServiceArgs: {{workers: 2, python: {engine.python}, envs: {envs}}}\n"
    )
    command = machine.start("dynamo", "serve", "-f", config, **ENV)
    url = ready(command)
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"], START)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    return command, url


def decision(machine: Any, request: str) -> dict[str, Any]:
    machine.until(lambda: machine.raw("GET", f"/v1/requests/{request}/decision")[0] == 200)
    found: dict[str, Any] = machine.raw("GET", f"/v1/requests/{request}/decision")[1][-1]
    return found


def test_two_workers_behind_the_router_and_one_that_is_killed(machine: Any, engine: External) -> None:
    command, url = workers(machine, engine)
    prompt = "Repeat: " + " ".join(["apple", "river", "stone", "cloud"][n % 4] for n in range(150))

    def ask(request: str, **more: Any) -> dict[str, Any]:
        machine.begin(url, prompt, request=request, max_tokens=4, temperature=0, **more).answer()
        return decision(machine, request)

    both = [one["instance"] for one in ask("other")["candidates"]]
    first = ask("first", nvext={"backend_instance_id": both[1]})
    assert first["chosen"] == both[1]
    machine.until(lambda: ask(f"again-{time.monotonic()}")["overlap"] >= 4, 30, "KV events")
    found = ask("last")
    assert found["overlap"] >= 4

    pids = {row["process"]: row["pid"] for row in machine.ps("Worker")}
    segment = {pid: segments(machine, pid) for pid in pids.values()}
    asked, long = [*TAUGHT[-2:], "Tell me a story."] * 2, {"temperature": 0, "max_tokens": 1500, "ignore_eos": True}
    with ThreadPoolExecutor(len(asked)) as pool:  # none is over when the last has begun
        streams = list(pool.map(lambda text: machine.stream(url, text, **long), asked))
    killed = pids[serving(machine, streams[-1].id)[1]]
    shared = segment[killed]
    os.kill(killed, signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    machine.until(lambda: "moves to another instance" in command.err)
    machine.until(lambda: not [name for name in shared if Path(name).exists()], 20, f"the end of {shared}")
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"], START)
    command.tree()
    whole = {text: machine.stream(url, text, **long).read().text for text in asked[:3]}
    assert [stream.text for stream in streams] == [whole[text] for text in asked]

    worker = machine.ps("Worker")[0]["pid"]
    [inner] = [pid for pid in machine.tree(worker) if engine.process in Path(f"/proc/{pid.pid}/comm").read_text()]
    os.kill(inner.pid, signal.SIGKILL)
    machine.until(lambda: machine.ps("Worker")[0]["pid"] != worker, 30, "a new worker")
    assert "engine process has ended" in machine.ps("Worker")[0]["last_error"]
    assert machine.chat(url, TAUGHT[0], temperature=0) == "The capital of France is Paris."


REFUSED = [
    (VLLM, ("--", "--max-num-seqz", "3"), "vllm: unrecognized arguments: --max-num-seqz 3"),
    (VLLM, ("--", "--max-num-seqs", "many"), "argument --max-num-seqs: invalid int value: 'many'"),
    (VLLM, ("--extra-engine-args", '{"dtpye": 1}'), "argument dtpye: vLLM has no such argument; did you mean 'dtype'?"),
    (VLLM, ("--extra-engine-args", '{"max_model_len": "many"}'), "max_model_len: Input should be a valid integer"),
    (VLLM, ("--extra-engine-args", '{"kv_cache_memory_bytes": 9999}'), "ValueError: No available memory for the cache"),
    (
        VLLM,
        ("--context-length", 100, "--", "--max-model-len", "101"),
        "max_model_len: 101, but --context-length is 100",
    ),
    (SGLANG, ("--", "--page-sise", "3"), "sglang: unrecognized arguments: --page-sise 3"),
    (SGLANG, ("--extra-engine-args", '{"dtpye": 1}'), "argument dtpye: SGLang has no such argument; did you mean 'dty"),
    (
        SGLANG,
        ("--extra-engine-args", '{"mem_fraction_static": 0.000001}'),
        "ValueError: Loaded weights leave no|RuntimeError: Not enough memory",  # as much memory as is free then
    ),
]


@pytest.mark.parametrize(("engine", "words", "says"), REFUSED)
def test_what_an_engine_refuses_is_one_line_and_nothing_is_left(
    machine: Any, engine: External, words: tuple[Any, ...], says: str
) -> None:
    ended = machine.start("dynamo-run", *installed(engine).run, *words, **ENV).wait(START)
    assert ended.code == 1
    [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert any(one in line for one in says.split("|")), line


def test_a_model_that_cannot_be_loaded(machine: Any, engine: External) -> None:
    files = {file.name: file.read_bytes() for file in (Path(__file__).parents[2] / "dynamod/sample/hf").iterdir()}
    folder = machine.folder / "strange"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_bytes(files["config.json"].replace(b"LlamaForCausalLM", b"NoSuchForCausalLM"))
    words = ("in=http", f"out={engine.name}", folder, "--http-port", 0, "--python", engine.python)
    ended = machine.start("dynamo-run", *words, **ENV).wait(START)
    [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert "NoSuchForCausalLM" in line
