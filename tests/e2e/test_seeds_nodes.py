"""The documents, walked: several processes and nodes, routers, graphs, the frontend alone."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import seed_files
from .nodes import on
from .test_chat import Terminal
from .walking import ASK_3B, PRETORIA, ask, line_of, serve, text, walks

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl"),
]


NATS, QUESTION = line_of("nats-server -js --trace"), line_of("curl localhost:8000/v1/chat/completions")


@walks(
    "dynamo-run in=http out=auto",
    "dynamo-run in=http out=dyn",
    "dynamo-run in=dyn://llama3B.backend.generate out=mistralrs ~/llms/Llama-3.2-3B-Instruct",
    "dynamo-run in=http out=dyn://llama3B_pool",
    "dynamo-run in=dyn://llama3B_pool out=mistralrs ~/llm_models/Llama-3.2-3B-Instruct",
    "dyn://test",
)
def test_two_nodes(machine: Any, shared_servers: Any) -> None:
    pytest.importorskip("mistralrs")
    for front, worker in (
        (
            "dynamo-run in=http out=auto",
            "dynamo-run in=dyn://llama3B.backend.generate out=mistralrs ~/llms/Llama-3.2-3B-Instruct",
        ),
        ("dynamo-run in=http out=dyn", "dynamo-run in=dyn://test out=mistralrs ~/llms/Llama-3.2-3B-Instruct"),
        (
            "dynamo-run in=http out=dyn://llama3B_pool",
            "dynamo-run in=dyn://llama3B_pool out=mistralrs ~/llm_models/Llama-3.2-3B-Instruct",
        ),
    ):
        url = serve(machine, front, **on(machine, shared_servers, "one"))
        serve(machine, worker, **on(machine, shared_servers, "two"))
        machine.until(lambda url=url: machine.serves(url))
        assert text(ask(machine, url, ASK_3B)) == PRETORIA
        for command in machine.commands[-2:]:
            command.end()


@walks(NATS, "nats-server -js")
@pytest.mark.parametrize("line", [NATS, "nats-server -js"])
def test_the_nats_server_of_the_guide(machine: Any, line: str) -> None:
    """With its flags, at a free port; a worker at a fixed address needs nothing else."""
    words = shlex.split(line.replace("$(mktemp -d)", str(machine.folder / "js")))
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.is_file() else shutil.which("nats-server")
    if program is None:
        pytest.skip("no nats-server")
    port = machine.port()
    environ = {**os.environ, "TMPDIR": str(machine.folder)}  # where it stores what it is not told a place for
    server = subprocess.Popen([program, *words[1:], "-p", str(port)], env=environ, stderr=subprocess.DEVNULL)
    try:
        cluster = {"NATS_SERVER": f"nats://127.0.0.1:{port}", "DYNAMOD_CLUSTER": "auto"}
        front = line_of("dynamo-run in=http out=dyn://dynamo.backend.generate")
        one, two = (
            {**cluster, "DYNAMOD_NODE": node, "DYNAMOD_SOCKET": str(machine.folder / f"{node}.sock")}
            for node in ("one", "two")
        )
        url = serve(machine, front, **one)
        serve(machine, "dynamo-run in=dyn://dynamo.backend.generate out=mocker sample --static-worker", **two)
        machine.until(lambda: "Qwen3-0.6B-Q8_0.gguf" in machine.ask(url, "/v1/models")[1])
        assert text(ask(machine, url, ASK_3B, "Qwen3-0.6B-Q8_0.gguf"))
        for command in machine.commands:
            command.end()
    finally:
        server.terminate()
        server.wait(10)


@walks(
    "dynamo-run in=dyn://qwen3-32b.backend.generate /data/Qwen3-32B",
    "dynamo-run in=dyn://llama3-1-8b.backend.generate /data/Llama-3.1-8B-Instruct/",
    "llama3-1-8b.backend.load_metrics",
)
def test_two_instances_and_two_models(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    url = serve(machine, "dynamo-run in=http out=auto")
    for line, name in (
        ("dynamo-run in=dyn://qwen3-32b.backend.generate /data/Qwen3-32B", "Qwen3-32B"),
        ("dynamo-run in=dyn://qwen3-32b.backend.generate /data/Qwen3-32B", "Qwen3-32B"),
        ("dynamo-run in=dyn://llama3-1-8b.backend.generate /data/Llama-3.1-8B-Instruct/", "Llama-3.1-8B-Instruct"),
    ):
        serve(machine, f"{line} --model-name {name}")
    machine.until(lambda: json.loads(machine.ask(url, "/v1/models")[1])["data"].__len__() == 2)
    instances = json.loads(machine.ask(url, "/health")[1])["instances"]
    places = sorted(f"{one['namespace']}.{one['component']}.{one['endpoint']}" for one in instances)
    assert places == ["llama3-1-8b.backend.generate", *["qwen3-32b.backend.generate"] * 2]
    assert len({one["instance_id"] for one in instances}) == 3
    for name in ("Qwen3-32B", "Llama-3.1-8B-Instruct"):
        assert text(ask(machine, url, ASK_3B, name)) == PRETORIA
    machine.script(seed_files.METRICS, name="metrics").prints("kv_total_blocks")


@walks(
    line_of("echo '{"),
    line_of("dynamo-run in=dyn://dynamo.mocker.generate"),
    "dynamo-run in=http out=auto --router-mode kv",
    "dynamo-run in=http out=dyn --router-mode kv",
    "--router-mode random|round-robin",
    "--kv-overlap-score-weight",
    "--router-temperature",
    "--use-kv-events",
    "dynamo-run in=dyn://... out=<engine> ... --migration-limit=3",
)
def test_mockers_behind_routers(machine: Any) -> None:
    subprocess.run(["bash", "-c", line_of("echo '{")], cwd=machine.folder, check=True)
    mocker = line_of("dynamo-run in=dyn://dynamo.mocker.generate")
    for more in ("", " --migration-limit=3"):
        serve(machine, mocker + more)
    for front in (
        "dynamo-run in=http out=auto --router-mode kv",
        "dynamo-run in=http out=dyn --router-mode kv --kv-overlap-score-weight 0 --router-temperature 0.5",
        "dynamo-run in=http out=auto --router-mode random",
        "dynamo-run in=http out=auto --router-mode round-robin",
        "dynamo-run in=http out=auto --router-mode kv --use-kv-events false",
    ):
        url = serve(machine, front)
        machine.until(lambda url=url: machine.serves(url))
        assert text(ask(machine, url, ASK_3B))
        machine.commands[-1].end()


@walks(
    line_of("dynamo-run in=http out=dyn://dynamo.backend.generate"),
    line_of("dynamo-run in=dyn://dynamo.backend.generate out=llamacpp"),
)
def test_a_static_worker_of_llamacpp(machine: Any) -> None:
    pytest.importorskip("llama_cpp")
    url = serve(machine, line_of("dynamo-run in=http out=dyn://dynamo.backend.generate"))
    serve(machine, line_of("dynamo-run in=dyn://dynamo.backend.generate out=llamacpp"))
    machine.until(lambda: "Qwen3-0.6B-Q8_0.gguf" in machine.ask(url, "/v1/models")[1])
    assert text(ask(machine, url, ASK_3B, "Qwen3-0.6B-Q8_0.gguf")) == PRETORIA


@walks(
    "cd examples/llm",
    "dynamo serve graphs.agg:Frontend -f configs/agg.yaml",
    line_of("| MODEL TYPE"),
    QUESTION,
    line_of('{ "id"'),
    "curl -N",
)
def test_serve(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    folder = ROOT / "examples/llm"
    words = shlex.split("dynamo serve graphs.agg:Frontend -f configs/agg.yaml")
    command = machine.start(*words, "--Frontend.port=0", cwd=folder)
    url = command.ready()
    assert command.out.startswith("Added new chat model sample\n")
    heads = [re.sub(" +", " ", line) for line in command.out.splitlines() if line.startswith("| MODEL TYPE")]
    assert heads[0] == re.sub(" +", " ", line_of("| MODEL TYPE"))
    answer, shown = json.loads(ask(machine, url, QUESTION)), json.loads(line_of('{ "id"'))
    _same(answer, shown)
    _same(answer["choices"][0], shown["choices"][0])
    _same(answer["choices"][0]["message"], shown["choices"][0]["message"])
    streamed = QUESTION.replace("curl ", "curl -N ", 1).replace('"stream":false', '"stream": true')
    events = ask(machine, url, streamed).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    parts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(parts) == answer["choices"][0]["message"]["content"]


def _same(answer: dict[str, Any], shown: dict[str, Any]) -> None:
    """The members that the document shows, in its order, with those of its values that are always so."""
    assert [*answer] == [*shown]
    for name in ("role", "object", "index", "refusal", "tool_calls", "logprobs", "service_tier", "finish_reason"):
        assert answer.get(name) == shown.get(name)


@walks(
    "python -m dynamo.frontend --interactive",
    "python -m dynamo.frontend [--interactive]",
    "python -m dynamo.frontend",
    "python -m dynamo.frontend [--http-port 8080]",
)
def test_the_frontend(machine: Any) -> None:
    front = machine.start("dynamo.frontend", "--http-port", machine.port())
    url = front.ready()
    serve(machine, "dynamo-run in=dyn://test out=echo_core sample")
    machine.until(lambda: machine.serves(url))
    assert "Hello" in text(ask(machine, url, line_of("curl localhost:8000/v1/chat/completions")))
    front.end()
    chat = Terminal(machine, "--interactive", command="dynamo.frontend")
    chat.until("Talking to sample")
    chat.until("User ›")
    assert chat.end("\x04") == 0
