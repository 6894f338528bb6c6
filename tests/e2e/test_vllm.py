"""Real vLLM in an environment of its own, whose interpreter `DYNAMOD_TEST_VLLM_PYTHON` names (engine/run_heavy.sh)."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .asking import chat_body

PYTHON = os.environ.get("DYNAMOD_TEST_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not PYTHON, reason="needs vLLM: DYNAMOD_TEST_VLLM_PYTHON names the python of its environment"),
]

START = 300.0
"""Seconds: two engines start at the same time, each with three processes that import vLLM."""
ENV = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
SMALL = 1 << 28
"""Bytes of the KV cache."""
RUN = ("in=http", "out=vllm", "sample", "--http-port", 0, "--python", PYTHON)
SEQS = ("--max-num-seqs", "16", "--kv-cache-memory-bytes", str(SMALL))
COUNTRIES = ("France", "Spain", "Japan", "Kenya", "Norway", "Italy", "Germany", "Egypt", "Peru", "South Africa")
TAUGHT = [*(f"What is the capital of {country}?" for country in COUNTRIES), "Count from 1 to 120."]


def ready(command: Any) -> str:
    url: str = command.prints(r"\S+ ready: (\S+)\n", START)[1]
    return url


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


def running(machine: Any) -> int:
    """Requests in the worker's hands."""
    view = machine.run("dynamo", "top", "--once", "--interval", "0.1", "--output", "json").json
    [found] = [one["worker"]["running"] for one in view["processes"] if one["worker"]]
    return int(found)


def test_dynamo_run_answers_as_mistralrs_does(machine: Any) -> None:
    before = set(os.listdir("/dev/shm"))
    command = machine.start("dynamo-run", *RUN, "--kv-cache-block-size", 32, "--", *SEQS, **ENV)
    machine.until(
        lambda: [row for row in machine.ps("Worker") if "vllm loads the model, since" in row["detail"]], START
    )
    url = ready(command)
    machine.until(lambda: machine.serves(url))
    ours = answers(machine, url)
    assert ours[0][0] == "The capital of France is Paris."
    words = ("in=http", "out=mistralrs", "sample", "--model-name", "other", "--http-port", 0)
    other = machine.start("dynamo-run", *words, **ENV)
    assert ours == answers(machine, ready(other), "other")
    other.end()

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
    assert machine.chat(url, "ping", min_tokens=20, max_tokens=30) != machine.chat(url, "ping")
    assert machine.chat(url, TAUGHT[-1], stop=[", 7"], temperature=0) == "1, 2, 3, 4, 5, 6"
    noise = [machine.chat(url, "x y z", seed=5, temperature=2, max_tokens=20, ignore_eos=True) for _ in range(2)]
    assert noise[0] == noise[1]
    assert noise[0] != machine.chat(url, "x y z", seed=6, temperature=2, max_tokens=20, ignore_eos=True)
    status, text = machine.ask(url, "/v1/completions", {"model": "sample", "prompt": "one " * 3000, "max_tokens": 1})
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")

    left = [machine.stream(url, TAUGHT[-1], max_tokens=1800, ignore_eos=True) for _ in range(16)]
    assert running(machine) > 0
    for stream in left:
        stream.close()
    machine.until(lambda: running(machine) == 0, 5, "free slots")
    command.end()
    machine.until(lambda: set(os.listdir("/dev/shm")) <= before, 20, "the end of shared memory")


def workers(machine: Any, *words: str) -> tuple[Any, str]:
    config = machine.folder / "two.yaml"
    config.write_text(
        "graph: graphs.agg:Frontend\n"
        "Common: {model: sample, kv_cache_block_size: 32}\n"
        "Frontend: {port: 0}\n"
        "Processor: {common-configs: [model], router_mode: kv}\n"
        "Worker:\n"
        "  common-configs: [model, kv_cache_block_size]\n"
        f"  engine: vllm\n  engine_args: {{kv_cache_memory_bytes: {SMALL}}}\n"
        f"  ServiceArgs: {{workers: 2, python: {PYTHON}}}\n"
    )
    command = machine.start("dynamo", "serve", "-f", config, *words, **ENV)
    url = ready(command)
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"], START)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    return command, url


def decision(machine: Any, request: str) -> dict[str, Any]:
    machine.until(lambda: machine.raw("GET", f"/v1/requests/{request}/decision")[0] == 200)
    found: dict[str, Any] = machine.raw("GET", f"/v1/requests/{request}/decision")[1][-1]
    return found


def test_two_workers_behind_the_router_and_one_that_is_killed(machine: Any) -> None:
    command, url = workers(machine)
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

    asked, long = [*TAUGHT[-2:], "Tell me a story."] * 2, {"temperature": 0, "max_tokens": 900, "ignore_eos": True}
    with ThreadPoolExecutor(len(asked)) as pool:  # none is over when the last has begun
        streams = list(pool.map(lambda text: machine.stream(url, text, **long), asked))
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    machine.until(lambda: "moves to another instance" in command.err)
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"], START)
    command.tree()
    whole = {text: machine.stream(url, text, **long).read().text for text in asked[:3]}
    assert [stream.text for stream in streams] == [whole[text] for text in asked]

    worker = machine.ps("Worker")[0]["pid"]
    [engine] = [pid for pid in machine.tree(worker) if "EngineCor" in Path(f"/proc/{pid.pid}/comm").read_text()]
    os.kill(engine.pid, signal.SIGKILL)
    machine.until(lambda: machine.ps("Worker")[0]["pid"] != worker, 30, "a new worker")
    assert "engine process has ended" in machine.ps("Worker")[0]["last_error"]
    assert machine.chat(url, TAUGHT[0], temperature=0) == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--", "--max-num-seqz", "3"), "vllm: unrecognized arguments: --max-num-seqz 3"),
        (("--", "--max-num-seqs", "many"), "argument --max-num-seqs: invalid int value: 'many'"),
        (
            ("--extra-engine-args", '{"dtpye": "auto"}'),
            "argument dtpye: vLLM has no such argument; did you mean 'dtype'?",
        ),
        (("--extra-engine-args", '{"max_model_len": "many"}'), "max_model_len: Input should be a valid integer"),
        (("--extra-engine-args", '{"kv_cache_memory_bytes": 100000}'), "ValueError: No available memory for the cache"),
        (("--context-length", 100, "--", "--max-model-len", "101"), "max_model_len: 101, but --context-length is 100"),
    ],
)
def test_what_vllm_refuses_is_one_line_and_nothing_is_left(machine: Any, words: tuple[Any, ...], says: str) -> None:
    before = set(os.listdir("/dev/shm"))
    ended = machine.start("dynamo-run", *RUN, *words, **ENV).wait(START)
    assert ended.code == 1
    [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert says in line
    machine.until(lambda: set(os.listdir("/dev/shm")) <= before, 20, "the end of shared memory")


def test_a_model_that_vllm_cannot_load(machine: Any) -> None:
    files = {file.name: file.read_bytes() for file in (Path(__file__).parents[2] / "dynamod/sample/hf").iterdir()}
    folder = machine.folder / "strange"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_bytes(files["config.json"].replace(b"LlamaForCausalLM", b"NoSuchForCausalLM"))
    words = ("in=http", "out=vllm", folder, "--http-port", 0, "--python", PYTHON)
    ended = machine.start("dynamo-run", *words, **ENV).wait(START)
    [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert "NoSuchForCausalLM" in line
