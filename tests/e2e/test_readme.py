"""The README does what it says: every command in it is run, and what it shows is what is printed."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess.packaged import PACKAGED

from ..hub import Hub
from .shell import VERBS, Shell, joined, plain
from .test_chat import piped

ROOT = Path(__file__).parents[2]
FIRST = "uv run --extra mistralrs dynamo serve graphs.agg:Frontend -f configs/agg.yaml"
TESTS = "uv run pytest"
ACTIVATE = "source .venv/bin/activate"

CHUNKS = """
async def generate(request):
    for word in request["messages"][-1]["content"].split():
        yield {"choices": [{"index": 0, "delta": {"content": f"{word}! "}}]}
"""
OURS = ("dynamo", "dynamod", "dynamo-run", "uv", "python", "pip", "source", "curl")
"""First words of what is a command, also in the middle of a sentence."""
NAMES = {"dynamod", "dynamod-llm", "dynamo-run", "uv run", "dynamo serve", "dynamo-run in=http"}
"""Commands that are spoken of, not given."""
INLINE = {
    "dynamo serve graphs.agg:Frontend -f configs/agg.yaml": "test_look_and_control serves it, with echo_core",
    "dynamo top": "test_look_and_control",
    "dynamo reload -f new.yaml": "test_look_and_control",
    "dynamo serve --detach": "needs the service: test_service.py hands a graph over",
    "python -m dynamo.frontend": "test_the_frontend_alone; its chat needs a terminal: test_chat.py",
    "python -m dynamo.mocker sample": "test_the_frontend_alone",
    ACTIVATE: "test_the_environment_of_uv_has_the_commands",
    TESTS: "that is us",
    "dynamo pull Qwen/Qwen3-0.6B": "test_another_model",
    "dynamo models": "test_another_model",
    "dynamo serve -f configs/two_models.yaml": "test_your_own_graph",
    "python my_engine.py": "test_your_own_engine_in_python",
    "dynamo-run in=http out=pystr:my_chunks.py": "test_your_own_engine_in_python",
    "dynamo-run in=http out=auto": "test_one_engine_without_a_graph_file",
    "dynamo-run in=dyn://llama3B.backend.generate out=mistralrs sample": "test_one_engine_without_a_graph_file",
    "dynamo-run in=http out=auto --router-mode kv": "test_several_nodes",
    "dynamo-run in=dyn://llama3B.backend.generate out=mocker sample": "test_several_nodes",
    "dynamo-run sample": "needs a terminal: test_chat.py talks to it",
    "uv tool install '/path/to/dynamod[mistralrs]'": "needs a registry: .ci/run installs the wheel",
}
"""Commands in a sentence that stand in no block: where they are run, or why they are not."""

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")


def blocks(kind: str) -> dict[str, list[str]]:
    """Fenced blocks of a kind, by the heading they stand under."""
    found: dict[str, list[str]] = {}
    heading, inside, lines = "", "", list[str]()
    for line in (ROOT / "README.md").read_text().splitlines():
        if inside:
            if line == "```":
                if inside == kind:
                    found.setdefault(heading, []).append("\n".join(lines))
                inside = ""
            else:
                lines.append(line)
        elif line.startswith("```"):
            inside, lines = line[3:] or "none", []
        elif line.startswith("## "):
            heading = line[3:]
    return found


def inline() -> set[str]:
    """What stands between backquotes in a sentence and begins like a command."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    spans = {" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)}
    return {span for span in spans if span.split()[0] in OURS}


def spoken(text: str) -> str:
    """A command that stands in a sentence."""
    assert text in inline()
    return text


def commands(heading: str) -> list[str]:
    """The shell commands under a heading, one per line (a backslash joins lines), without comments behind them."""
    return joined("\n".join(blocks("bash")[heading]))


@pytest.fixture
def shell(machine: Any) -> Callable[[Path], Shell]:
    return lambda folder: Shell(machine, folder)


def lasting(answer: str) -> dict[str, Any]:
    """Of an answer what is the same every time."""
    return {key: value for key, value in json.loads(answer).items() if key not in ("id", "created")}


def content(answer: str) -> str:
    text: str = json.loads(answer)["choices"][0]["message"]["content"]
    return text


@needs_curl
@pytest.mark.engine
def test_run_it(shell: Callable[[Path], Shell]) -> None:
    pytest.importorskip("mistralrs")
    first, ask, *_ = commands("Run it")
    ask_streaming = ask.removesuffix("}'") + ', "stream": true}\''
    assert first == FIRST
    here = shell(ROOT)
    printed = {plain(line) for line in here.run(first).splitlines()}
    (shown,) = blocks("text")["Run it"]
    tables = (
        "Added new completions model sample",
        "| MODEL TYPE | MODEL NAME | NAMESPACE | COMPONENT | ENDPOINT |",
        "| chat | sample | dynamo | Processor | chat/completions |",
        "| completions | sample | dynamo | Processor | completions |",
    )
    assert {plain(line) for line in [*shown.splitlines(), *tables]} == printed

    answer = here.run(ask)
    assert content(answer) == "The capital of South Africa is Pretoria."
    shown = blocks("json")["Run it"][0]
    assert lasting(shown) == lasting(answer)

    events = [line for line in here.run(ask_streaming).splitlines() if line]
    assert all(line.startswith("data: ") for line in events)
    assert events.pop() == "data: [DONE]"
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "The capital of South Africa is Pretoria."
    # Twelve tokens may all be there before a busy machine has opened the stream; a long answer comes in pieces.
    longer = ask_streaming.replace("What is the capital of South Africa?", "Count from 1 to 200.").replace(
        "100", "1500"
    )
    long = here.run(longer)
    assert long.count('"content":') > 4, "it comes in pieces"


@needs_curl
@pytest.mark.engine
@pytest.mark.real
@pytest.mark.skipif(PACKAGED["smollm2"].path is None, reason="needs the extra demo")
def test_run_it_with_a_real_model(shell: Callable[[Path], Shell]) -> None:
    pytest.importorskip("mistralrs")
    _, _, serve, ask = commands("Run it")
    assert serve == f"{FIRST.replace('--extra', '--extra demo --extra', 1)} --Worker.model=smollm2"
    here = shell(ROOT)
    here.run(serve)
    shown, answer = json.loads(blocks("json")["Run it"][1]), json.loads(here.run(ask))
    words = content(json.dumps(answer))
    assert "sea" in words.lower(), words
    assert words.endswith("."), words
    # Floats differ between processors, and with them perhaps the greedy text: the rest is the same.
    for one in (shown, answer):
        assert len(one["choices"][0]["message"].pop("content")) > 30
        assert one["usage"].pop("total_tokens") == 37 + one["usage"].pop("completion_tokens")
    assert lasting(json.dumps(shown)) == lasting(json.dumps(answer))


def test_another_model(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pull, models = spoken("dynamo pull Qwen/Qwen3-0.6B"), spoken("dynamo models")
    name = pull.split()[-1]
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with Hub({name: {"config.json": b"{}", "model.safetensors": b"x" * 1234}}).running() as hub:
        machine.env.update(HF_ENDPOINT=hub.url, HF_HOME=str(machine.folder))
        pulled = machine.run(*shlex.split(pull))
        assert (Path(pulled.out.strip()) / "model.safetensors").stat().st_size == 1234, pulled.err
        assert f"| {name} " in machine.run(*shlex.split(models)).out


def test_the_environment_of_uv_has_the_commands() -> None:
    if not (ROOT / ".venv/bin/activate").is_file():
        pytest.skip("this checkout has no .venv")
    done = subprocess.run(["bash", "-c", f"{spoken(ACTIVATE)} && command -v dynamo-run"], cwd=ROOT, capture_output=True)
    assert Path(done.stdout.decode().strip()) == ROOT / ".venv/bin/dynamo-run"


@needs_curl
def test_the_frontend_alone(machine: Any) -> None:
    port = machine.port()
    frontend = machine.start("dynamo.frontend", "--http-port", port)
    assert frontend.ready() == f"http://localhost:{port}"
    assert '"data":[]' in machine.ask(f"http://localhost:{port}", "/v1/models")[1]
    machine.start(*spoken("python -m dynamo.mocker sample").removeprefix("python -m ").split()).ready()
    machine.until(lambda: machine.serves(f"http://localhost:{port}"))


def test_the_test_command_has_what_it_needs() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    development = " ".join(settings["dependency-groups"]["dev"])
    assert "pytest>=" in development
    assert "mistralrs" in development
    assert settings["tool"]["pytest"]["ini_options"]["testpaths"] == ["tests"]
    assert settings["project"]["optional-dependencies"]["mistralrs"]
    assert settings["project"]["scripts"].keys() >= {"dynamo", "dynamod", "dynamo-run"}


@needs_curl
@pytest.mark.engine
def test_one_engine_without_a_graph_file(shell: Callable[[Path], Shell]) -> None:
    pytest.importorskip("mistralrs")
    prompt, batch, echo, ask, ask_sample = commands("One engine without a graph file")
    front = spoken("dynamo-run in=http out=auto")
    worker = spoken("dynamo-run in=dyn://llama3B.backend.generate out=mistralrs sample")
    here = shell(ROOT)
    folder = here.machine.folder
    (folder / "prompts.jsonl").write_text('{"text": "What is the capital of Spain?"}\n')
    said, _, command = prompt.partition(" | ")
    for line, stdin in ((command, said.removeprefix("echo ").strip('"')), (batch, "")):
        done = piped(here.machine, stdin, *shlex.split(line)[1:])
        assert done.returncode == 0, done.stderr
        if stdin:
            assert done.stdout == "The capital of France is Paris.\n"
    assert json.loads((folder / "prompts.output.jsonl").read_text())["response"] == "The capital of Spain is Madrid."

    here.run(echo)
    assert content(here.run(ask)) == "Hello, world"
    here.last.end()

    here.run(front)
    here.run(worker)
    here.machine.until(lambda: here.machine.serves(f"http://localhost:{here.ports['8080']}"))
    assert "capital of France is Paris" in content(here.run(ask_sample))


@needs_curl
def test_several_workers(shell: Callable[[Path], Shell], machine: Any) -> None:
    serve, ask, explain, replay = commands("Several workers and a KV-aware router")
    here = shell(ROOT)
    here.run(serve)
    assert json.loads(here.run(ask))["usage"]["completion_tokens"] == 20
    printed = sorted(plain(line).replace("*", "") for line in here.run(explain).splitlines())
    (shown,) = blocks("text")["Several workers and a KV-aware router"]
    assert sorted(plain(line).replace("*", "") for line in shown.splitlines()) == printed
    rows = {row.split("|")[1].strip(): row.split("|") for row in here.run(replay).splitlines() if row.startswith("| ")}
    assert float(rows["kv"][2]) > float(rows["kv-original"][2]) > float(rows["round-robin"][2])


@needs_curl
def test_several_nodes(shell: Callable[[Path], Shell], machine: Any) -> None:
    up, ask, doctor, down = commands("Several nodes")
    front = spoken("dynamo-run in=http out=auto --router-mode kv")
    worker = spoken("dynamo-run in=dyn://llama3B.backend.generate out=mocker sample")
    here = shell(ROOT)
    try:
        printed = here.run(up)
        assert "nats-server is healthy" in printed
        assert "etcd is healthy" in printed
        machine.env["DYNAMOD_NODE"] = "one"
        here.run(front)
        url = f"http://localhost:{here.ports['8080']}"
        (machine.folder / "two").mkdir()
        socket, machine.socket = machine.socket, machine.folder / "two/d.sock"
        machine.env["DYNAMOD_NODE"] = "two"
        here.run(worker)
        machine.socket = socket
        machine.until(lambda: machine.serves(url))
        assert json.loads(machine.ask(url, "/health")[1])["instances"][0]["node"] == "two"
        assert json.loads(here.run(ask))["usage"]["completion_tokens"] == 20
        told = here.run(doctor)
        assert "ok   etcd: " in told
        assert "ok   nats: " in told
        assert "on two (sample) answers" in told
    finally:
        assert here.run(down).splitlines() == ["nats-server ended", "etcd ended"]


@needs_curl
def test_your_own_graph(shell: Callable[[Path], Shell], machine: Any) -> None:
    serve, ask = commands("Your own graph")
    (code,) = blocks("python")["Your own graph"]
    (machine.folder / "hello.py").write_text(code + "\n")
    here = shell(machine.folder)
    here.run(serve)
    assert here.run(ask) == "hello world; hello moon; "
    rows = {row["component"]: row["pid"] for row in machine.ps()}
    assert rows["Backend"] != rows["Frontend"]
    here.last.end()

    here.run(spoken("dynamo serve -f configs/two_models.yaml"))
    url = f"http://localhost:{here.ports['8000']}"
    models = json.loads(machine.ask(url, "/v1/models")[1])["data"]
    assert {model["id"] for model in models} == {"small", "large"}
    assert machine.chat(url, "Hi", model="large", max_tokens=20)


@needs_curl
def test_your_own_engine_in_python(shell: Callable[[Path], Shell], machine: Any) -> None:
    (ask,) = commands("Your own engine in Python")
    (code,) = blocks("python")["Your own engine in Python"]
    front = spoken("dynamo-run in=http out=auto")
    engine = machine.script(code, name=spoken("python my_engine.py").split()[-1].removesuffix(".py"))
    here = shell(machine.folder)
    here.run(front)
    machine.until(lambda: '"echo"' in machine.ask(f"http://localhost:{here.ports['8080']}", "/v1/models")[1])
    assert json.loads(here.run(ask))["choices"][0]["text"] == "say it again"
    engine.end()
    here.last.end()
    (machine.folder / "my_chunks.py").write_text(CHUNKS)
    here.run(spoken("dynamo-run in=http out=pystr:my_chunks.py"))
    assert (
        machine.chat(f"http://localhost:{here.ports['8080']}", "say it again", model="my_chunks") == "say! it! again! "
    )


@needs_curl
def test_look_and_control(shell: Callable[[Path], Shell], machine: Any) -> None:
    lines = commands("Look and control")
    verbs = [line for line in lines if line.startswith("dynamo ")]
    requests = [line for line in lines if line.startswith("curl ")]
    assert lines == verbs + requests, "a command that this test cannot run"
    assert {line.split()[1] for line in verbs} == VERBS
    assert verbs[-1] == "dynamo stop"
    (serve,) = [text for text in inline() if text.startswith("dynamo serve graphs.agg")]
    settings = ("--Worker.engine=echo_core", "--Frontend.port=0")
    command = machine.start(*shlex.split(serve), *settings, DYN_TOKEN_ECHO_DELAY_MS="1")
    command.ready()
    here = shell(machine.folder)
    new = (ROOT / "configs/agg.yaml").read_text().replace("8000", "0").replace("mistralrs", "echo_core")
    (machine.folder / "new.yaml").write_text(new)
    also = sorted(text for text in inline() if text in ("dynamo top", "dynamo reload -f new.yaml"))
    for line in (*also, *verbs[:-1]):
        out = here.run(line)
        assert out, line
        machine.until(lambda: all(row["state"] == "Ready" for row in machine.ps()))
        command.tree()
        if line == "dynamo status":
            assert str(machine.socket) in out
        if "scale" in line:
            assert len(machine.ps("Worker")) == int(line.split()[-1])
        if "drain" in line:
            assert machine.ps("Worker") == [], "drained"
    for line in requests:
        assert all(row["component"] for row in json.loads(here.run(line)))
        machine.until(lambda: all(row["state"] == "Ready" for row in machine.ps()))
        command.tree()
    assert len(machine.ps("Worker")) == 2
    here.run(verbs[-1])
    command.wait()


def test_no_command_is_left_out() -> None:
    run = {
        "Run it",
        "One engine without a graph file",
        "Several workers and a KV-aware router",
        "Several nodes",
        "Your own graph",
        "Your own engine in Python",
        "Look and control",
    }
    assert blocks("bash").keys() == run, "a heading with commands has a test here"
    assert not blocks("sh").keys() | blocks("shell").keys() | blocks("none").keys(), "commands stand in bash blocks"
    every = [line for heading in run for line in commands(heading)]
    assert inline() - NAMES - {*every} == INLINE.keys() - {*every}, "a command in a sentence is run too"
    assert not NAMES & {*every}
    assert FIRST in every


def test_links_lead_somewhere() -> None:
    for file in [ROOT / "README.md", *ROOT.glob("*/README.md"), *ROOT.glob("dynamod/*/README.md")]:
        for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", file.read_text()):
            if "://" in target:
                continue
            found = file.parent / target if target else file
            assert found.exists(), f"{file}: {target}"
            assert not heading or heading in headings(found), f"{file}: {target}#{heading}"


def headings(file: Path) -> set[str]:
    """Headings of a file as links name them."""
    found = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
