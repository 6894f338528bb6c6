"""What the tutorials promise, in more detail than `test_manual_commands.py` compares: texts, nodes, numbers of workers.

Some of these commands need two terminals or a pipe, so the pages show them in `console` blocks.
"""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..hub import Hub
from .manual_page import Block, blocks_of
from .shell import VERBS, Shell, content, joined, needs_curl
from .test_chat import piped

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text()


def commands(page: str) -> list[str]:
    """The commands of a page, those that the manual's own test does not run too."""
    return joined("\n".join(block.text for block in blocks_of(text_of(page)) if block.kind in ("sh", "console")))


def spoken(page: str, text: str) -> str:
    """A command that stands in a sentence of a page."""
    assert f"`{text}`" in re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return text


def files(page: str) -> dict[str, Block]:
    """The files that a page shows, by name."""
    return {block.title: block for block in blocks_of(text_of(page)) if block.title}


@pytest.fixture
def shell(machine: Any) -> Callable[[Path], Shell]:
    return lambda folder: Shell(machine, folder)


def test_another_model(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "get-started/first-model"
    pull, models = spoken(page, "dynamo pull Qwen/Qwen3-0.6B"), spoken(page, "dynamo models")
    name = pull.split()[-1]
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with Hub({name: {"config.json": b"{}", "model.safetensors": b"x" * 1234}}).running() as hub:
        machine.env.update(HF_ENDPOINT=hub.url, HF_HOME=str(machine.folder))
        pulled = machine.run(*shlex.split(pull))
        assert (Path(pulled.out.strip()) / "model.safetensors").stat().st_size == 1234, pulled.err
        assert f"| {name} " in machine.run(*shlex.split(models)).out


@pytest.mark.engine
def test_one_engine_without_a_graph(shell: Callable[[Path], Shell]) -> None:
    pytest.importorskip("mistralrs")
    (prompt,) = [line for line in commands("tutorials/chat") if " | " in line]
    (batch,) = [line for line in commands("tutorials/batch") if "in=batch:" in line]
    here = shell(ROOT)
    folder = here.machine.folder
    for name, block in files("tutorials/batch").items():
        (folder / name).write_text(block.text + "\n")
    said, _, command = prompt.partition(" | ")
    for line, stdin in ((command, said.removeprefix("echo ").strip('"')), (batch, "")):
        done = piped(here.machine, stdin, *shlex.split(line)[1:])
        assert done.returncode == 0, done.stderr
        if stdin:
            assert done.stdout == "The capital of France is Paris.\n"
    assert json.loads((folder / "prompts.output.jsonl").read_text())["response"] == "The capital of Spain is Madrid."


@needs_curl
def test_an_echo(shell: Callable[[Path], Shell]) -> None:
    lines = commands("how-to/engines")
    place = lines.index("dynamo-run in=http out=echo_full --model-name echo")
    here = shell(ROOT)
    here.run(lines[place])
    assert content(here.run(lines[place + 1])) == "Hello, world"


@needs_curl
@pytest.mark.engine
def test_a_frontend_and_workers_apart(shell: Callable[[Path], Shell], machine: Any) -> None:
    pytest.importorskip("mistralrs")
    front, worker, ask, frontend, mocker, models = commands("tutorials/frontend-and-workers")
    here = shell(ROOT)
    here.run(front)
    first = here.last
    here.run(worker)
    machine.until(lambda: machine.serves(f"http://localhost:{here.ports['8080']}"))
    assert "capital of France is Paris" in content(here.run(ask))
    here.last.end()
    first.end()

    here.ports["8000"] = port = machine.port()
    started = machine.start(*frontend.removeprefix("python -m ").split(), "--http-port", port)
    assert started.ready() == f"http://localhost:{port}"
    assert '"data":[]' in here.run(models)
    machine.start(*mocker.removeprefix("python -m ").split()).ready()
    machine.until(lambda: machine.serves(f"http://localhost:{port}"))


@needs_curl
def test_several_nodes(shell: Callable[[Path], Shell], machine: Any) -> None:
    up, tell, front, worker, ask, nodes, doctor, down = commands("tutorials/two-nodes")
    assert tell.startswith("export NATS_SERVER=")
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
        machine.until(lambda: machine.run(*nodes.split()).out.count("answers") == 2)
        assert "one*" in here.run(nodes)
        told = here.run(doctor)
        assert "ok   etcd: " in told
        assert "ok   nats: " in told
        assert "on two (sample) answers" in told
    finally:
        assert here.run(down).splitlines() == ["nats-server ended", "etcd ended"]


@needs_curl
def test_your_own_graph(shell: Callable[[Path], Shell], machine: Any) -> None:
    serve, ask, serve_yaml, models = commands("tutorials/own-graph")
    for name, block in files("tutorials/own-graph").items():
        (machine.folder / name).write_text(block.text + "\n")
    here = shell(machine.folder)
    here.run(serve)
    assert here.run(ask) == "hello world; hello moon; "
    rows = {row["component"]: row["pid"] for row in machine.ps()}
    assert rows["Backend"] != rows["Frontend"]
    here.last.end()

    here.run(serve_yaml)
    assert {model["id"] for model in json.loads(here.run(models))["data"]} == {"small", "large"}
    assert machine.chat(f"http://localhost:{here.ports['8000']}", "Hi", model="large", max_tokens=20)


@needs_curl
def test_your_own_engine_in_python(shell: Callable[[Path], Shell], machine: Any) -> None:
    chat, ask_chat, engine, front, ask = commands("tutorials/own-engine")
    shown = files("tutorials/own-engine")
    started = machine.script(shown["my_engine.py"].text, name=engine.split()[-1].removesuffix(".py"))
    here = shell(machine.folder)
    here.run(front)
    machine.until(lambda: '"echo"' in machine.ask(f"http://localhost:{here.ports['8080']}", "/v1/models")[1])
    assert json.loads(here.run(ask))["choices"][0]["text"] == "say it again"
    started.end()
    here.last.end()
    (machine.folder / "my_chat.py").write_text(shown["my_chat.py"].text + "\n")
    here.run(chat)
    assert content(here.run(ask_chat)) == "hello! world! "
    url = f"http://localhost:{here.ports['8080']}"
    assert machine.chat(url, "say it again", model="mine") == "say! it! again! "


@needs_curl
def test_look_and_control(shell: Callable[[Path], Shell], machine: Any) -> None:
    page = "tutorials/control"
    serve, *lines = commands(page)
    verbs = [line for line in lines if line.startswith("dynamo ")]
    requests = [line for line in lines if line.startswith("curl ")]
    assert sorted(lines) == sorted(verbs + requests), "a command that this test cannot run"
    assert {line.split()[1] for line in verbs} == VERBS
    assert verbs[-1] == "dynamo stop"
    command = machine.start(*shlex.split(serve), "--Frontend.port=0", DYN_TOKEN_ECHO_DELAY_MS="1")
    command.ready()
    here = shell(machine.folder)
    new = (ROOT / "configs/agg.yaml").read_text().replace("8000", "0").replace("mistralrs", "echo_core")
    (machine.folder / "new.yaml").write_text(new)
    for line in (spoken(page, "dynamo reload -f new.yaml"), spoken(page, "dynamo top"), *verbs[:-1]):
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
