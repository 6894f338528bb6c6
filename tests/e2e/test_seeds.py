"""The documents that dynamod re-creates, walked: each of their lines in `seeds.LINES` that can run here is run.

A line is adapted in model, port, path and context length, and in nothing else.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess.locate import locate

from ..hub import Hub
from . import seeds
from .nodes import models, on
from .python_files import CHAT, OWN
from .test_chat import FRONTEND, Terminal, piped

WALKED: dict[str, set[str]] = {}
"""Lines by the test that runs them."""

PLACES = re.compile(r"(~|/data|/app|<)\S*|(Qwen|deepseek-ai|TinyLlama|meta-llama)/\S+")
"""Words that are somebody's model: a folder, a placeholder or a repository of the hub."""

pytestmark = [pytest.mark.engine, pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")]


def walks(*lines: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test runs these lines of the documents."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        WALKED[test.__name__] = {*lines}
        return test

    return mark


@pytest.fixture(autouse=True)
def one_thread(machine: Any) -> None:
    machine.env["RAYON_NUM_THREADS"] = "1"


def adapted(line: str) -> list[str]:
    """The words of a command with our model in place of theirs, GGUF or folder, and with a context that it has."""
    words = shlex.split(line.removeprefix("./"))
    for place, word in enumerate(words):
        if place and words[place - 1] == "--context-length":
            words[place] = "512"
        elif word.endswith(".gguf") and words[place - 1] != "--model-name":
            words[place] = str(locate("sample.gguf"))
        elif PLACES.fullmatch(word):
            words[place] = "sample" if words[place - 1] != "--model-config" else str(locate("sample"))
    return words


def serve(machine: Any, line: str, **env: str) -> str:
    """Start what a line starts, wait until it is ready; its URL if it has one."""
    words = adapted(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if "in=http" in words:
        words += ["--http-port", "0"]
    url: str = machine.start(*words, **env).ready()
    return url


def ask(machine: Any, url: str, line: str, model: str = "sample") -> Any:
    """Run a curl line, at our port and for our model; its text."""
    words = [re.sub(r"(http://)?localhost:80[08]0", url, word) for word in shlex.split(line.removesuffix(" | jq"))]
    if words[-1] == "...":
        words[-1:] = ["-H", "Content-Type: application/json", f"{url}/v1/chat/completions"]
    for place, word in enumerate(words):
        if word.startswith("{"):
            limit = {"max_tokens", "max_completion_tokens"} & json.loads(word).keys()
            body = {**json.loads(word), "model": model, **dict.fromkeys(limit, 60)}
            words[place] = json.dumps(body)
    machine.ports.add(int(url.rpartition(":")[2]))
    done = subprocess.run([*words, "-sSf"], capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def text(answer: str) -> str:
    content: str = json.loads(answer)["choices"][0]["message"]["content"]
    return content


def line_of(start: str) -> str:
    """The only line of the documents that begins so."""
    (found,) = [line.text for line in seeds.LINES if line.text.startswith(start)]
    return found


MODELS = "curl localhost:8080/v1/models"
ASK_3B, ASK_1B = (line_of(f'curl -d \'{{"model": "Llama-3.2-{size}-Instruct-Q4_K_M"') for size in ("3B", "1B"))
PRETORIA = "The capital of South Africa is Pretoria."


# One machine.


@walks("dynamo-run --help", "dynamo-run in=http out=mistralrs -v", "dynamo-run in=text out=llamacpp -vv")
def test_help_and_an_engine_without_a_model(machine: Any) -> None:
    shown = machine.run("dynamo-run", "--help").out
    for flag in ("--router-mode", "--kv-overlap-score-weight", "--context-length", "--leader-addr", "--verbosity"):
        assert flag in shown
    for line in ("dynamo-run in=http out=mistralrs -v", "dynamo-run in=text out=llamacpp -vv"):
        assert re.search("needs|install", machine.run(*line.split()).mistake())


CHATS = (
    "dynamo-run Qwen/Qwen3-0.6B",
    "dynamo-run in=text out=mistralrs Qwen/Qwen3-4B",
    "dynamo-run out=<engine> <HUGGING_FACE_ORGANIZATION/MODEL_NAME>",
    "dynamo-run Llama-3.2-3B-Instruct-Q4_K_M.gguf",
)


@walks(*CHATS, "? User › Hello, how are you?", "export DYN_LOG=debug")
@pytest.mark.parametrize("line", CHATS)
def test_a_chat_in_the_terminal(machine: Any, line: str) -> None:
    pytest.importorskip("mistralrs")
    debug = line == CHATS[0]
    if debug:
        machine.env["DYN_LOG"] = "debug"
    chat = Terminal(machine, *adapted(line.replace("<engine>", "mistralrs"))[1:])
    chat.until("User ›")
    chat.type("What is the capital of South Africa?\r")
    chat.until(PRETORIA)
    chat.until("User ›")
    assert ("DEBUG" in chat.text) == debug
    assert chat.end("\x04") == 0


@walks("HF_TOKEN", "hf://")
def test_a_model_of_the_hub(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a server that has the hub's paths and wants a token."""
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    files = {file.name: file.read_bytes() for file in Path(locate("sample")).iterdir() if file.suffix == ".json"}
    with Hub({"meta-llama/Toy": files}).running() as hub:
        hub.gated, hub.token = True, "mine"
        machine.env.update(HF_ENDPOINT=hub.url, HF_HOME=str(machine.folder))
        words = ("out=echo_core", "hf://meta-llama/Toy")
        refused = piped(machine, "hello", *words)
        assert (refused.returncode != 0, "set HF_TOKEN" in refused.stderr) == (True, True), refused.stderr
        machine.env["HF_TOKEN"] = "mine"
        assert "hello" in piped(machine, "hello", *words).stdout


@walks(
    "echo 'What is the capital of Tuvalu?' | dynamo-run ~/llms/Qwen3-0.6B-Q8_0.gguf --context-length 4096",
    "[--verbosity (-v|-vv)]",
)
def test_one_prompt_from_a_pipe(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    said, _, command = line_of("echo 'What").partition(" | ")
    words = adapted(command)[1:]
    for more in ([], ["--verbosity", "-vv"]):
        done = piped(machine, shlex.split(said)[1].replace("Tuvalu", "South Africa"), *words, *more)
        assert (done.returncode, done.stdout) == (0, f"{PRETORIA}\n")
        assert ("DEBUG" in done.stderr) == bool(more)


@walks(
    "dynamo-run in=http out=mistralrs <model> -v",
    "dynamo-run in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf",
    "dynamo-run in=http Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    MODELS,
    ASK_3B,
    ASK_1B,
)
def test_http(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    for line, question in (
        ("dynamo-run in=http out=mistralrs <model> -v", ASK_3B),
        ("dynamo-run in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf", ASK_3B),
        ("dynamo-run in=http Llama-3.2-1B-Instruct-Q4_K_M.gguf", ASK_1B),
    ):
        url = serve(machine, line)
        assert [model["id"] for model in json.loads(ask(machine, url, MODELS))["data"]] == ["sample"]
        assert text(ask(machine, url, question)) == PRETORIA
        machine.commands[-1].end()


@walks(
    "dynamo-run in=text out=llamacpp <model> -vv",
    "dynamo-run out=llamacpp ~/llms/gemma-3-1b-it-q4_0.gguf",
    line_of("dynamo-run out=llamacpp ~/llms/Llama-4"),
    line_of("dynamo-run out=llama_cpp"),
)
def test_llamacpp(machine: Any) -> None:
    pytest.importorskip("llama_cpp")
    for line in WALKED["test_llamacpp"]:
        words = [str(locate("sample.gguf")) if word == "sample" else word for word in adapted(line)[1:]]
        chat = Terminal(machine, *words)
        chat.until("User ›")
        chat.type("What is the capital of South Africa?\r")
        chat.until(PRETORIA)
        chat.until("User ›")
        assert chat.end("\x04") == 0


@walks(
    "dynamo-run in=http out=echo_full --model-name my_model",
    "dynamo-run in=http out=echo_full",
    "DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo_full",
    "dynamo-run in=http out=echo_core --model-path <hf-repo-checkout>",
    line_of("curl -N"),
)
def test_echo(machine: Any) -> None:
    for line in (
        "dynamo-run in=http out=echo_full --model-name my_model",
        "dynamo-run in=http out=echo_full",
        "DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo_full",
    ):
        url = serve(machine, line)
        (model,) = [one["id"] for one in json.loads(ask(machine, url, MODELS))["data"]]
        assert ("--model-name" not in line) or model == "my_model"
        assert text(ask(machine, url, ASK_3B, model)) == "What is the capital of South Africa?"
        machine.commands[-1].end()
    url = serve(machine, "dynamo-run in=http out=echo_core --model-path <hf-repo-checkout>")
    events = [line[6:] for line in ask(machine, url, line_of("curl -N")).splitlines() if line.startswith("data: {")]
    told = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)
    assert "Tell me a story" in told
    assert "<|im_start|>" in told or "user" in told, "the whole template"


@walks(
    "dynamo-run in=batch:prompts.jsonl out=llamacpp <model>",
    '{"text": "What is the capital of France?"}',
    line_of('{"text":"What'),
)
def test_a_batch(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    first = '{"text": "What is the capital of France?"}'
    (machine.folder / "prompts.jsonl").write_text(f"{first}\n{first.replace('France', 'Spain')}\n")
    words = adapted("dynamo-run in=batch:prompts.jsonl out=llamacpp <model>")[1:]
    there = importlib.util.find_spec("llama_cpp") is not None
    model = str(locate("sample.gguf")) if there else "sample"
    words = [word.replace("llamacpp", "llamacpp" if there else "mistralrs") for word in words[:-1]]
    done = piped(machine, "", *words, model)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (machine.folder / "output.jsonl").read_text().splitlines()]
    shown = json.loads(line_of('{"text":"What'))
    assert all(row.keys() >= shown.keys() for row in rows)
    assert rows[0]["response"] == shown["response"]
    assert rows[1]["response"] == shown["response"].replace("France", "Spain").replace("Paris", "Madrid")


@walks(
    "dynamo-run out=pystr:/home/user/my_python_engine.py",
    "dynamo-run out=pytok:/home/user/my_python_engine.py --model-path <hf-repo-checkout>",
    "async def generate(request):",
)
def test_an_engine_in_a_python_file(machine: Any) -> None:
    for line, file in (
        ("dynamo-run out=pystr:/home/user/my_python_engine.py", seeds.STR),
        ("dynamo-run out=pytok:/home/user/my_python_engine.py --model-path <hf-repo-checkout>", seeds.TOK),
    ):
        (machine.folder / "my_python_engine.py").write_text(file)
        words = [word.replace("/home/user", str(machine.folder)) for word in adapted(line)[1:]]
        done = piped(machine, "What is the capital of France?", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() if file is seeds.TOK else done.stdout == "The capital of France is Paris.\n"


@walks("await register_llm(model_type, endpoint, model_path)", "ModelType.Chat", "ModelType.Completion")
def test_python_files_that_register_themselves(machine: Any) -> None:
    assert "await register_llm(model_type, endpoint, model_path)" in OWN
    url = serve(machine, "dynamo-run in=http out=auto")
    machine.script(OWN, name="my_engine")
    machine.script(CHAT, name="my_chat")
    machine.until(lambda: {"sample", "org/talker", "org/writer"} <= {*models(machine, url)})
    assert "hello there" in machine.chat(url, "hello there")
    assert machine.chat(url, "hello there", model="org/talker") == "HELLO THERE "
    written = machine.ask(url, "/v1/completions", {"model": "org/writer", "prompt": "abc"})[1]
    assert json.loads(written)["choices"][0]["text"] == "cba"


# Several processes and nodes.


@walks(
    line_of("nats-server"),
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


@walks(line_of("nats-server"))
def test_the_nats_server_of_the_guide(machine: Any) -> None:
    """With its flags, at a free port; a worker at a fixed address needs nothing else."""
    words = shlex.split(line_of("nats-server").replace("$(mktemp -d)", str(machine.folder / "js")))
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.is_file() else shutil.which("nats-server")
    if program is None:
        pytest.skip("no nats-server")
    port = machine.port()
    server = subprocess.Popen([program, *words[1:], "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        cluster = {"NATS_SERVER": f"nats://127.0.0.1:{port}", "DYNAMOD_CLUSTER": "auto"}
        line = line_of("dynamo-run in=http out=dyn://dynamo.backend.generate")
        one, two = (
            {**cluster, "DYNAMOD_NODE": node, "DYNAMOD_SOCKET": str(machine.folder / f"{node}.sock")}
            for node in ("one", "two")
        )
        url = serve(machine, line, **one)
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
    machine.script(seeds.METRICS, name="metrics").prints("kv_total_blocks")


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
    line_of("curl localhost:8000/v1/chat/completions"),
)
def test_serve(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    folder = machine.folder / "examples/llm"
    folder.mkdir(parents=True)
    words = shlex.split("dynamo serve graphs.agg:Frontend -f configs/agg.yaml")
    command = machine.start(*words, "--Frontend.port=0", cwd=folder)
    url = command.ready()
    assert command.out.startswith("Added new chat model sample\n")
    heads = [re.sub(" +", " ", line) for line in command.out.splitlines() if line.startswith("| MODEL TYPE")]
    assert heads[0] == re.sub(" +", " ", line_of("| MODEL TYPE"))
    answer = ask(machine, url, line_of("curl localhost:8000/v1/chat/completions"))
    assert json.loads(answer).keys() >= {"id", "choices", "created", "model", "object", "usage"}
    assert json.loads(answer)["choices"][0]["message"]["role"] == "assistant"


@walks("python -m dynamo.frontend --interactive", "python -m dynamo.frontend [--http-port 8080]")
def test_the_frontend(machine: Any) -> None:
    front = machine.start("dynamo.frontend", "--http-port", machine.port())
    url = front.ready()
    serve(machine, "dynamo-run in=dyn://test out=echo_core sample")
    machine.until(lambda: machine.serves(url))
    assert "Hello" in text(ask(machine, url, line_of("curl localhost:8000/v1/chat/completions")))
    front.end()
    chat = Terminal(machine, "--interactive", entry=FRONTEND)
    chat.until("Talking to sample")
    chat.until("User ›")
    assert chat.end("\x04") == 0


# Engines with environments of their own, and the table.


@walks(*(line.text for line in seeds.HEAVY))
@pytest.mark.heavy
@pytest.mark.parametrize("line", [line.text for line in seeds.HEAVY])
def test_vllm_and_sglang(machine: Any, line: str) -> None:
    variable = f"DYNAMOD_TEST_{'VLLM' if 'vllm' in line else 'SGLANG'}_PYTHON"
    if not (python := os.environ.get(variable, "")):
        pytest.skip(f"{variable} names no python")
    machine.env["OMP_NUM_THREADS"] = "1"
    words = adapted(line.replace("dynamo run", "dynamo-run").removeprefix("python -m "))
    if "--help" in words:
        command = [python, "-m", *words]
        shown = subprocess.run(command, env=machine.environ(), capture_output=True, text=True, timeout=120)
        own = "--max-num-seqs" if "vllm" in line else "--page-size"
        assert {own, "--endpoint"} <= {*re.findall(r"--[\w-]+", shown.stdout)}, shown.stderr
        return
    if "--extra-engine-args" in words:
        (machine.folder / words[-1]).write_text('{"dtype": "float32", "trust_remote_code": true}')
    words += ["--python", python]
    if words[0] == "dynamo-run" and not any(word.startswith("in=") for word in words):
        chat = Terminal(machine, *words[1:])
        chat.until("User ›", 300)
        chat.type("What is the capital of South Africa?\r")
        chat.until(PRETORIA)
        chat.until("User ›")
        assert chat.end("\x04", 20) == 0
        return
    alone = "in=http" in words
    worker = machine.start(*words, *(["--http-port", "0"] if alone else []))
    url = "" if alone else serve(machine, "dynamo-run in=http out=auto")
    said = worker.prints(r"ready(?:: (\S+))?\n", 300)[1]
    url = url or said
    machine.until(lambda: machine.serves(url))
    assert text(ask(machine, url, ASK_3B)) == PRETORIA


def test_every_line_is_walked_and_the_table_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    runs = {line.text for line in seeds.LINES if line.status in ("works", "differs")}
    walked = {text for lines in WALKED.values() for text in lines}
    assert walked == runs
    assert len({line.text for line in seeds.LINES}) == len(seeds.LINES)
    assert (Path(__file__).parent / "SEEDS.md").read_text() == seeds.table()
    with capsys.disabled():
        print(f"\nlines of the documents: {seeds.counts()}")
