"""A user's mistake is one line on stderr that says what to do, never a traceback; and help helps."""

import importlib.metadata
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess.locate import locate


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


COMMANDS = (
    "serve",
    "status",
    "ps",
    "nodes",
    "top",
    "logs",
    "inspect",
    "restart",
    "scale",
    "switch",
    "drain",
    "stop",
    "doctor",
    "run",
    "env",
    "pull",
    "models",
    "config",
    "audit",
)
HELP = [
    "dynamo",
    *(f"dynamo {command} --help".replace("  ", " ") for command in ("", *COMMANDS)),
    *(f"{command} --help" for command in ("dynamod", "dynamo-run", "dynamo.frontend")),
    *(f"{command} --version" for command in ("dynamo", "dynamo serve", "dynamo run", "dynamod", "dynamo-run")),
]


MISTAKES: list[tuple[str, list[str]]] = [
    ("dynamo serve graphs.nope:Frontend", ["graphs.nope"]),
    ("dynamo serve graphs.agg:Fronted", ["no service 'Fronted'", "Frontend"]),
    ("dynamo serve graphs.agg", ["graphs.agg", "for example graphs.agg:Frontend"]),
    ("dynamo serve configs/agg.yaml", ["configs/agg.yaml", "dynamo serve -f configs/agg.yaml"]),
    ("dynamo serve graphs.agg:Frontend -f flow.yaml", ["flow.yaml:2", 'write "${MODEL}" in quotes']),
    ("dynamo doctor --port 99999", ["--port", "65535"]),
    ("dynamo doctor memory --socket /no/where.sock", ["no daemon", "/no/where.sock"]),
    ("dynamo doctor --port 80 memory", ["--port", "before memory"]),
    ("dynamo serve graphs.agg:Frontend -f nothere.yaml", ["nothere.yaml"]),
    ("dynamo serve graphs.agg:Frontend -f wrong.yaml", ["wrong.yaml:3", "prot", "did you mean 'port'", "host"]),
    ("dynamo serve graphs.agg:Frontend -f torn.yaml", ["torn.yaml:3"]),
    ("dynamo serve -f configs/agg.yaml --Frontend.port=high", ["Frontend", "port", "high"]),
    ("dynamo serve -f configs/agg.yaml --Frontend.port=70000", ["Frontend", "port", "70000"]),
    ("dynamo serve -f configs/agg.yaml --port high", ["--port", "integer"]),
    ("dynamo serve -f configs/agg.yaml --Wroker.engine=echo_core", ["Wroker", "Worker"]),
    ("dynamo serve -f configs/agg.yaml --Worker.engnie=echo_core", ["engnie", "engine"]),
    ("dynamo serve -f configs/agg.yaml --Worker.engine=echo_cor", ["echo_cor", "did you mean 'echo_core"]),
    ("dynamo serve -f configs/agg.yaml --Worker.engine=echo_core --Worker.model=/no/model", ["/no/model"]),
    ("dynamo serve -f configs/agg.yaml --Worker.engine=echo_core --Frontend.port={taken}", ["{taken}", "in use"]),
    ("dynamo serve -f configs/agg.yaml --service-name Nobody", ["Nobody", "Worker"]),
    ("dynamo serve -f configs/agg.yaml --Worker.engine=echo_core --socket regular", ["regular", "socket"]),
    ("dynamo serve -f configs/agg.yaml --Worker.engine=echo_core --socket " + "x" * 120, ["too long"]),
    ("dynamo serve -f configs/agg.yaml -vvv", ["-v"]),
    ("dynamo serve", ["graph"]),
    ("dynamo sevre", ["sevre"]),
    ("dynamo ps --ouput json", ["--ouput"]),
    ("dynamo ps --output yaml", ["yaml"]),
    ("dynamo sim --output yaml", ["yaml", "text", "json"]),
    ("dynamo top --interval 0", ["--interval", "0.1"]),
    ("dynamo top --interval often", ["--interval", "number"]),
    ("dynamo top --socket /no/where.sock", ["no daemon", "/no/where.sock"]),
    ("dynamo top --once --output json --socket /no/where.sock", ["no daemon", "/no/where.sock"]),
    ("dynamo nodes two", ["two"]),
    ("dynamo nodes --socket /no/where.sock", ["no daemon", "/no/where.sock"]),
    ("dynamo ps --all --socket /no/where.sock", ["no daemon", "/no/where.sock"]),
    ("dynamo top --all --once --socket /no/where.sock", ["no daemon", "/no/where.sock"]),
    ("dynamo audit --since soon", ["--since is 'soon'", "1h30m", "2026-01-31"]),
    ("dynamo audit --status bad", ["--status is 'bad'", "4xx"]),
    ("dynamo audit --kind other", ["other", "request", "command"]),
    ("dynamo audit --folder /no/where", ["no audit files in /no/where", "audit: true"]),
    ("dynamo scale Worker", ["replicas"]),
    ("dynamo scale Worker many", ["replicas", "integer"]),
    ("dynamo serve -f configs/agg.yaml --timeout soon", ["--timeout", "'soon' is no number"]),
    ("dynamo scale Worker -- -1", ["replicas", "0"]),
    ("dynamo scale Worker -1", ["-1 is no number from 0 upwards"]),
    ("dynamo serve -f configs/agg.yaml --Worker.ServiceArgs.workers=-1", ["got -1", "0 keeps the service"]),
    ("dynamo switch Worker", ["role"]),
    ("dynamo switch Worker both", ["both", "prefill", "decode", "aggregated"]),
    ("dynamo ps --socket /no/where.sock", ["no daemon", "/no/where.sock"]),
    ("dynamo serve -f configs/agg.yaml --Worker.engine=echo_core --detach", ["no daemon"]),
    ("dynamo config check wrong.yaml --graph graphs.agg:Frontend", ["wrong.yaml:3"]),
    ("dynamo run out=echo_cor", ["echo_cor"]),
    ("dynamo run in=htpt out=echo_core sample", ["in=htpt", "http", "dyn://"]),
    ("dynamo run out=echo_core /no/model", ["/no/model"]),
    ("dynamo run out=echo_core /nothere", ["/nothere", "give a folder"]),
    ("dynamo run out=echo_core smple", ["smple", "did you mean 'sample"]),
    ("dynamo run out=echo_core sample --http-prot 1", ["--http-prot"]),
    ("dynamo run out=echo_core sample --http-port high", ["--http-port", "high"]),
    ("dynamo run in=http out=echo_core sample --http-port {taken}", ["{taken}", "in use"]),
    ("dynamo run out=echo_core", ["model"]),
    ("dynamo run in=text out=echo_full", ["in=text", "terminal", "in=stdin"]),
    ("dynamo run in=stdin out=echo_full", ["stdin is empty"]),
    ("dynamo run in=batch: out=echo_full", ["in=batch:", "prompts.jsonl"]),
    ("dynamo run in=batch:nothere.jsonl out=echo_full", ["nothere.jsonl"]),
    ("dynamo run in=stdin out=echo_full --resume", ["--resume", "in=batch:"]),
    ("dynamo run out=echo_full --timeout long", ["--timeout", "'long'", "86400"]),
    ("dynamo run in=batch:. out=echo_full --api-key x", ["in=batch:.", "in=http"]),
    ("dynamo run in=http out=echo_full --request-template t", ["--request-template", "in=text"]),
    ("dynamo run in=stdin out=echo_full --request-template nothere", ["--request-template nothere"]),
    ("dynamo run in=http out=openai", ["openai", "needs a URL", "openai:http://127.0.0.1:8080/v1"]),
    ("dynamo run in=http out=openai:localhost:8080", ["url", "'localhost:8080'", "http"]),
    ("dynamo run in=http out=openai:http://me:key@localhost/v1", ["url", "password", "api_key_env"]),
    ("dynamo run in=http out=openai:http://localhost:{port}/v1", ["url", "{port}", "cmd"]),
    ('dynamo run in=http out=openai:http://localhost/v1 --extra-engine-args {"api-key":1}', ["api-key", "unknown"]),
    ("dynamo run in=http out=mocker sample -- --size 3", ["unknown flag --size", "--num-gpu-blocks"]),
    ("dynamo run in=http out=echo_core sample -- --size 3", ["echo_core takes no words after --", "pystr:FILE"]),
    ("dynamo run in=http", ["needs a model", "dynamo-run in=http out=mistralrs sample"]),
    ("dynamo run out=echo_core sample --hlep", ["--hlep", "did you mean '--help'"]),
    ("dynamo serve -f configs/agg.yaml --prot 3", ["--prot", "did you mean '--port'", "--Service.key=value"]),
    ("dynamo config check configs/agg.yaml --prot=3", ["--prot", "--Service.key=value"]),
    ("dynamo run in=http out=mocker sample --extra-engine-args bad.json", ["bad.json", "line 1 column 9"]),
    ("dynamo run in=http out=mocker sample --extra-engine-args bad.yaml", ["bad.yaml: line 2: "]),
    ('dynamo run in=http out=mocker sample --extra-engine-args {"a":', ["--extra-engine-args", "line 1 column 6"]),
    ('dynamo run in=http out=mocker sample --extra-engine-args {"a":1}', ["mocker", "a: unknown key"]),
    ("dynamo run in=http out=echo_core sample --num-nodes=2", ["--num-nodes", "one node"]),
    ("dynamo run in=http out=mocker sample --tensor-parallel-size 2", ["--tensor-parallel-size 2", "mocker"]),
    ("dynamo run in=none out=mocker sample", ["in=none", "--node-rank"]),
    ("dynamo serve -f configs/agg.yaml --Worker.num_nodes=2", ["Worker.num_nodes 2", "runs on one node"]),
    ("dynamo serve -f configs/agg.yaml --Frontend.port=x", ["Frontend.port: expected int"]),
    ("dynamo run in=http out=echo_core badtmpl", ["chat template is not valid"]),
    ("dynamo run in=http out=echo_core unreadable", ["unreadable", "must be readable"]),
    ("dynamo run in=http out=echo_core sample --context-length 99999", ["99999", "2048"]),
    ("dynamo run in=http out=echo_full --tls-cert-path nix --tls-key-path nox", ["TLS", "nix", "nox"]),
    ("dynamo run in=http out=echo_full --tls-cert-path nix", ["TLS", "key"]),
    ("dynamo run in=http out=echo_full --api-key-file nix", ["nix"]),
    ("dynamo run in=dyn://a.b.c.d out=echo_core sample", ["dyn://a.b.c.d"]),
    ("dynamo run in=dyn://a.b.c out=auto", ["in and out"]),
    ("dynamo run in=dyn://a.b.c out=mocker sample --api-key x", ["--api-key", "frontend", "in=http"]),
    ("dynamo run in=dyn://a.b.c out=mocker sample --router-mode best", ["best", "round-robin"]),
    ("dynamo run in=http out=auto --extra-engine-args x.json", ["--extra-engine-args", "worker"]),
    ("dynamo pull ../nothere", ["../nothere", "org/name"]),
    ("dynamo pull smple", ["did you mean 'sample'"]),
    ("dynamo models --output yaml", ["yaml", "text", "json"]),
    ("dynamod --config nothere.yaml", ["nothere.yaml"]),
    ("dynamod --config d.yaml", ["d.yaml", "grahps", "graphs"]),
    ("dynamod --nothing", ["--nothing"]),
    ("dynamod --socket regular", ["regular"]),
    ("dynamo.frontend --nothing", ["--nothing"]),
    ("dynamo.frontend --router-mode best", ["best", "round-robin"]),
    ("dynamo.frontend --http-port 70000", ["70000"]),
    ("dynamo.frontend --interactive", ["terminal"]),
    ("dynamo.frontend --model-nam x", ["--model-nam", "python -m dynamo.frontend --help"]),
    ("dynamo-run in=http in=http", ["twice"]),
    ("dynamo-run in = http out=echo_full", ["`in = http` has spaces", "write in=http"]),
    ("dynamo-run in =http out=echo_full", ["`in =http` has spaces", "write in=http"]),
    ("dynamo-run in=http out= echo_full", ["`out= echo_full` has spaces", "write out=echo_full"]),
    ("dynamo-run --in http out=echo_full", ["--in", "did you mean in=...?"]),
]


@pytest.fixture(scope="module")
def results(shared: Any) -> Iterator[dict[str, Any]]:
    """What each mistake and each help is answered with. `{taken}` is a port that somebody else has."""
    folder = shared.folder
    (folder / "wrong.yaml").write_text("Frontend:\n  host: 0.0.0.0\n  prot: 8000\n")
    (folder / "flow.yaml").write_text("Frontend: {port: 0}\nWorker: {model: ${MODEL}}\n")
    (folder / "torn.yaml").write_text("Frontend:\n  host: [0.0.0.0\n")
    (folder / "d.yaml").write_text("grahps: []\n")
    (folder / "regular").write_text("mine")
    (folder / "bad.json").write_text('{"a": 1,,}')
    (folder / "bad.yaml").write_text("a: [1\n")
    model = locate("sample")
    for name in ("badtmpl", "unreadable"):
        shutil.copytree(model, folder / name)
    (folder / "badtmpl/tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for m in messages %}{{ m"}))
    (folder / "unreadable/config.json").unlink()
    (folder / "unreadable/config.json").symlink_to("/proc/self/mem")  # what root may not read either
    texts = [words for words, _ in MISTAKES] + HELP
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = [(text.split()[0], text.replace("{taken}", port).split()[1:]) for text in texts]
        yield {"{taken}": port, **dict(zip(texts, shared.batch(cases), strict=True))}
    assert (folder / "regular").read_text() == "mine"


@pytest.mark.parametrize(("words", "says"), MISTAKES)
def test_one_line(results: dict[str, Any], words: str, says: list[str]) -> None:
    line = results[words].mistake()
    for part in says:
        assert part.replace("{taken}", results["{taken}"]) in line
    assert (results[words].code == 3) == ("no daemon" in says)
    assert results[words].out == ""


def test_a_missing_extra_is_named(shared: Any) -> None:
    (shared.folder / "blocked").mkdir(exist_ok=True)
    (shared.folder / "blocked/sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'mistralrs' else find(name, *a)\n"
        "import sys; sys.modules['mistralrs'] = None\n"
    )
    path = f"{shared.folder}/blocked:{shared.environ()['PYTHONPATH']}"
    line = shared.run("dynamo", "serve", "-f", "configs/agg.yaml", "--Frontend.port=0", PYTHONPATH=path).mistake()
    assert "uv sync --extra mistralrs" in line


def test_a_folder_that_is_gone(shared: Any) -> None:
    text = "import os, tempfile; f = tempfile.mkdtemp(); os.chdir(f); os.rmdir(f); import sys\n"
    text += "sys.argv = ['dynamo', 'serve', 'graphs.agg:Frontend']; from dynamod.cli.main import dynamo; dynamo()"
    assert "the current folder is not there" in shared.script(text, name="gone").wait(20).mistake()


def test_help(results: dict[str, Any]) -> None:
    top = results["dynamo --help"]
    assert top.code == 0
    assert "  dynamo serve graphs.agg:Frontend -f configs/agg.yaml\n" in top.out
    assert all(command in top.out for command in COMMANDS)
    assert results["dynamo"].out == top.out
    for command in ("dynamod", "dynamo-run", "dynamo.frontend"):
        result = results[f"{command} --help"]
        assert result.code == 0
        assert "example" in result.out.lower(), command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_an_example(results: dict[str, Any], command: str) -> None:
    result = results[f"dynamo {command} --help"]
    assert result.code == 0, result.err
    name = "dynamo-run" if command == "run" else f"dynamo {command}"
    assert re.search(rf"^\s*{name}", result.out.partition("xample")[2], re.MULTILINE), result.out


@pytest.mark.parametrize("command", ["dynamo", "dynamo serve", "dynamo run", "dynamod", "dynamo-run"])
def test_version(results: dict[str, Any], command: str) -> None:
    result = results[f"{command} --version"]
    assert result.code == 0
    name = {"dynamo serve": "dynamo", "dynamo run": "dynamo-run"}.get(command, command)
    assert re.fullmatch(rf"{name} \d+\.\d+\S*\n", result.out)


def test_completion(shared: Any) -> None:
    # Which shell started us is looked up among our parents, and may be none.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = shared.run("dynamo", "--show-completion", "bash", **named)
    assert script.code == 0, script.err
    assert "_DYNAMO_COMPLETE=complete_bash" in script.out
    for text, expected in {
        "dynamo s": {"serve", "status", "scale", "switch", "stop", "sim"},
        "dynamo serve graphs.a": {f"graphs.agg{more}:Frontend" for more in ("", "_planner", "_router")},
        "dynamo serve -f conf": {
            f"configs/{file.name}" for file in (Path(__file__).parents[2] / "configs").glob("*.yaml")
        },
        "dynamo pull sam": {"sample", "sample.gguf"},
        "dynamo restart W": set(),  # no daemon runs
    }.items():
        words = {"_DYNAMO_COMPLETE": "complete_bash", "COMP_WORDS": text, "COMP_CWORD": str(text.count(" "))}
        found = shared.run("dynamo", **words)
        assert set(found.out.split()) == expected, (text, found)


def test_completion_of_dynamo_run(shared: Any) -> None:
    for line, expected in {
        "dynamo-run in=h": {"in=http"},
        "dynamo-run in=http out=m": {"out=mistralrs", "out=mocker"},
        "dynamo-run in=http in=": set(),
        "dynamo-run --router-mode ra": {"random"},
        "dynamo-run sample --http-p": {"--http-port"},
        "dynamo-run sa": {"sample"},
    }.items():
        found = shared.run("dynamo-run", _DYNAMO_RUN_COMPLETE=line)
        assert (found.code, set(found.out.split())) == (0, expected), (line, found)
    script = shared.run("dynamo-run", "--show-completion", "bash")
    assert script.code == 0, script.err
    (shared.folder / "dynamo-run").write_text("#!/bin/sh\nprintf 'out=mistralrs\\nout=mocker\\n'\n")
    (shared.folder / "dynamo-run").chmod(0o755)
    text = f"{script.out}PATH=.:$PATH COMP_LINE='dynamo-run out=m' COMP_POINT=16; _dynamo_run; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", text], cwd=shared.folder, capture_output=True, text=True, check=True)
    assert done.stdout == "mistralrs mocker\n", "bash takes the word to begin behind ="
    assert "compdef" in shared.run("dynamo-run", "--show-completion", "zsh").out
    assert "complete -c dynamo-run" in shared.run("dynamo-run", "--show-completion", "fish").out


def test_look_before_serving(shared: Any) -> None:
    result = shared.run("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--dry-run")
    assert result.code == 0
    assert "echo_core" in result.out
    good = shared.run("dynamo", "config", "check", "configs/agg.yaml", "--Worker.engine=echo_core")
    assert good.code == 0, good.err
    schema = shared.run("dynamo", "config", "schema").json
    assert "Worker" in schema["properties"]
    own = shared.run("dynamo", "serve", "graphs.agg_router:Frontend", "--dry-run", "--Frontend.port=9123")
    assert own.code == 0, own.err
    assert own.err == "configs/agg_router.yaml is used, the config of this graph; -f names another\n"
    assert all(word in own.out for word in ('"mocker"', "9123"))
    given = shared.run("dynamo", "serve", "graphs.agg_router:Frontend", "--dry-run", "--Worker.model=sample")
    assert (given.code, given.err) == (0, ""), "nothing is missing"
    assert "mocker" not in given.out
    one = ("--leader-addr=127.0.0.1:9876", "--num-nodes=1", "--extra-engine-args", '{"speedup_ratio": 10}')
    usual = shared.run("dynamo-run", "in=http", "out=mocker", "sample", "--dry-run", *one)
    assert (usual.code, usual.err) == (0, ""), "one node has no leader; engine arguments may stand in the command"
    assert '"speedup_ratio": 10' in usual.out
    fine = shared.run("dynamo", "config", "check", "configs/agg.yaml", "--output", "json").json
    assert (fine["graph"], "Worker" in fine["services"]) == ("graphs.agg:Frontend", True)
    facts = shared.run("dynamo", "env", "--output", "json").json
    for engine, package in (("mistralrs", "mistralrs"), ("llamacpp", "llama_cpp_python")):
        assert facts["engines"][engine] == installed(package)
    env = shared.run("dynamo", "env").out
    assert f"python {sys.version.split()[0]}" in env


def left_of_daemons(machine: Any) -> list[str]:
    """Files that only a daemon has, and whether one holds the node. Its lock, once made, stays, and is empty then."""
    lock = machine.socket.with_name("d.sock.lock")
    found = [path.name for path in machine.folder.iterdir() if path.name.startswith("d.sock") and path != lock]
    return found + ([f"held by {lock.read_text()}"] if lock.exists() and lock.read_text() else [])


LEAVES = """
import os, sys
from pathlib import Path
from dynamod.cli import attach

class Lock(attach.NodeLock):
    def holder(self):
        [child] = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        print(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
        return super().holder()

attach.NodeLock = Lock
attach.attach_early(["--socket", sys.argv[1]], ())
attach.leave_early()
"""


def test_a_daemon_that_is_about_to_hold_the_node_leaves_nothing(machine: Any) -> None:
    """It is stopped while it is judged: else it might make its files between the look and the kill."""
    command = [sys.executable, "-c", LEAVES, str(machine.socket)]
    done = subprocess.run(command, check=True, timeout=30, env=machine.environ(), stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["T"]
    machine.until(lambda: left_of_daemons(machine) == [])


def test_a_mistake_leaves_no_daemon_behind(machine: Any) -> None:
    """The daemon is forked before the arguments are read. One that holds the node by then ends by itself."""
    started = machine.start("dynamo-run", "in=http", "out=echo_core", "sample", "--kv-cache-block-size=0")
    assert started.wait().code == 2
    machine.until(lambda: left_of_daemons(machine) == [])
