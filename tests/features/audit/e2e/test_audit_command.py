"""The audit log by the real commands: complete through SIGTERM, without the key, and read back."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.nodes import Servers, on
from tests.e2e.together import together

KEY = "sesame-street-99"
CONFIG = """
graph: graphs.agg:Frontend
Frontend: {port: 0, audit_dir: audit, client_keys_file: keys.yaml, audit_file_mb: 0.004, trusted_proxies: [127.0.0.1]}
Worker: {engine: echo_core, model: sample}
"""
BODY = {"model": "sample", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def ask(machine: Any, url: str, body: Mapping[str, Any], key: str = KEY, **headers: str) -> int:
    connection = machine._connect(url, 30)
    try:
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **headers}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), given)
        answer = connection.getresponse()
        answer.read()
        return int(answer.status)
    finally:
        connection.close()


def served(machine: Any, config: str = CONFIG, *words: str) -> tuple[Any, str]:
    """The command and its URL."""
    keys = machine.folder / "keys.yaml"
    keys.write_text(f"- {{name: team-a, key: {KEY}}}\n- {{name: team-b, key: {KEY}-b}}\n")
    keys.chmod(0o600)
    (machine.folder / "audit.yaml").write_text(config)
    command = machine.start("dynamo", "serve", "-f", "audit.yaml", *words)
    return command, command.ready()


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().split("\n")[:-1]]


def requests(folder: Path) -> list[dict[str, Any]]:
    return [one for one in entries(folder) if one["kind"] == "request"]


def shown(machine: Any, *words: str) -> list[dict[str, Any]]:
    """What `dynamo audit` prints as JSON."""
    done = machine.run("dynamo", "audit", "--output", "json", *words)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


@together
def test_each_request_and_each_change_has_an_entry(machine: Any) -> None:
    command, url = served(machine)
    assert [ask(machine, url, BODY, **{"X-Forwarded-For": "198.51.100.7"}) for _ in range(20)] == [200] * 20
    assert ask(machine, url, BODY, f"{KEY}-b", **{"x-request-id": "mine"}) == 200
    assert ask(machine, url, BODY, "another") == 401
    assert machine.run("dynamo", "scale", "Worker", "2").code == 0
    assert machine.run("dynamo", "restart", "Nothing").code == 1
    machine.until(lambda: len(shown(machine, "--since", "1h")) == 25)

    requests = shown(machine, "--kind", "request", "--since", "1h")
    assert [one["status"] for one in requests].count(200) == 21
    assert {one["client"] for one in shown(machine, "--key", "team-a")} == {"198.51.100.7"}
    (mine,) = shown(machine, "--key", "team-b", "--model", "sample")
    assert (mine["id"], mine["client"], mine["workers"]) == ("mine", "127.0.0.1", ["agg/Worker.0"])
    assert mine["completion_tokens"] == 4
    (refused,) = shown(machine, "--status", "4xx", "--kind", "request")
    assert (refused["error"], refused["key"]) == ("invalid_api_key", "")
    serve, scale, restart = shown(machine, "--kind", "command")
    assert (serve["command"], serve["arguments"]["folder"], serve["status"]) == ("serve", str(machine.folder), 200)
    assert (serve["arguments"]["session"].startswith("dynamo serve pid"), serve["uid"]) == (True, os.getuid())
    assert "environ" not in serve["arguments"]
    assert (scale["command"], scale["arguments"]["replicas"], scale["status"]) == ("scale", 2, 200)
    assert (restart["command"], restart["status"]) == ("restart", 404)
    assert scale["uid"] == os.getuid()
    assert scale["pid"] > 1
    status, answer = machine.raw("GET", "/v1/audit?lines=2&since=1h&key=team-a")
    assert (status, answer["folders"]) == (200, [str(machine.folder / "audit")])
    assert [one["key"] for one in answer["entries"]] == ["team-a"] * 2
    assert not [name for one in answer["entries"] for name in one if name.endswith("_body")]
    for query, said in (("lines=-1", "from 0 to"), ("lines=1&status=x", "4xx"), ("since=soon", "1h30m")):
        status, answer = machine.raw("GET", f"/v1/audit?{query}")
        assert (status, said in answer["error"]["hint"]) == (400, True), answer
    text = machine.run("dynamo", "audit", "-n", "1", "--key", "team-b").out
    assert " 200 POST /v1/chat/completions " in text
    assert " key=team-b " in text

    folder = machine.folder / "audit"
    assert len([*folder.iterdir()]) > 2  # closed files
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [path for path in folder.iterdir() if KEY in path.read_text()]
    assert 'audit_lines_total{outcome="written"} 22.0' in machine.ask(url, "/metrics")[1]
    command.end()
    machine.until(lambda: len(shown(machine, "--folder", str(folder))) == 26)
    stop = shown(machine, "--folder", str(folder), "--kind", "command")[-1]
    assert (stop["command"], stop["arguments"]["graph"], stop["pid"]) == ("stop", "agg", serve["pid"])


@together
def test_the_entries_of_all_nodes_are_one_log(machine: Any, servers: Servers) -> None:
    urls = {}
    for node in ("one", "two"):
        words = ("in=http", "out=echo_core", "sample", "--http-port", 0, "--audit-dir", machine.folder / f"log-{node}")
        urls[node] = machine.start("dynamo-run", *words, **on(machine, servers, node)).ready()
    for count, node in enumerate(["one", "two", "two", "one"]):
        assert ask(machine, urls[node], BODY, **{"x-request-id": f"r{count}"}) == 200
    here = on(machine, servers, "one")

    def shows(*words: str) -> list[dict[str, Any]]:
        done = machine.run("dynamo", "audit", "--all", "--output", "json", *words, **here)
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    machine.until(lambda: len(shows("--kind", "request")) == 4)
    assert [(one["id"], one["node"]) for one in shows("--kind", "request", "-n", "3")] == [
        ("r1", "two"),
        ("r2", "two"),
        ("r3", "one"),
    ]
    assert "node=two" in machine.run("dynamo", "audit", "--all", "--since", "1h", **here).out
    for words, said in (
        (("--lines", "0"), "--lines is 0; with --all give a number from 1 to 500"),
        (("--folder", "x"), "--folder names files of this node; leave out --folder, or --all"),
    ):
        assert said in machine.run("dynamo", "audit", "--all", *words, **here).err
    pid = int((machine.folder / "two" / "d.sock.lock").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        done = machine.run("dynamo", "audit", "--all", "--output", "json", "--kind", "request", **here)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.code == 1
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["r0", "r3"]
    assert "node two: " in done.err


@together
def test_sigterm_loses_no_entry(machine: Any) -> None:
    command, url = served(machine)
    pid = machine.row("Frontend")["pid"]
    assert [ask(machine, url, BODY) for _ in range(60)] == [200] * 60
    command.end(signal.SIGTERM)
    assert not Path(f"/proc/{pid}").exists()
    assert len(requests(machine.folder / "audit")) == 60


OPEN = """
graph: graphs.agg:Frontend
Frontend: {port: 0, audit_dir: audit}
Worker: {engine: echo_core, model: sample, ServiceArgs: {workers: 2}}
"""
SLOW = {"DYN_TOKEN_ECHO_DELAY_MS": "20"}


@together
def test_open_streams_have_an_entry_when_the_server_ends(machine: Any) -> None:
    (machine.folder / "audit.yaml").write_text(OPEN)
    command = machine.start("dynamo", "serve", "-f", "audit.yaml", "--Worker.ServiceArgs.workers=1", **SLOW)
    url = command.ready()
    streams = [machine.stream(url, "word " * 400, max_tokens=400) for _ in range(3)]
    command.end(signal.SIGTERM, bound=10.0)
    found = requests(machine.folder / "audit")
    assert [one["status"] for one in found] == [200] * 3
    assert {one["error"] for one in found} == {"shutting_down"}
    assert all(one["completion_tokens"] > 0 for one in found)
    for stream in streams:
        stream.close()


@together
def test_an_entry_names_the_workers_of_a_request_that_moved(machine: Any) -> None:
    (machine.folder / "audit.yaml").write_text(OPEN)
    command = machine.start("dynamo", "serve", "-f", "audit.yaml", **SLOW)
    url = command.ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2, 60)
    streams = [machine.stream(url, "word " * 60, max_tokens=60) for _ in range(2)]
    pid = next(row["pid"] for row in machine.ps("Worker") if row["process"] == "agg/Worker.0")
    os.kill(pid, signal.SIGKILL)
    for stream in streams:
        stream.read()
        stream.close()
    machine.until(lambda: len(requests(machine.folder / "audit")) == 2)
    moved, stayed = sorted(requests(machine.folder / "audit"), key=lambda one: -one["migrations"])
    assert (moved["migrations"], moved["workers"]) == (1, ["agg/Worker.0", "agg/Worker.1"])
    assert (stayed["migrations"], stayed["workers"]) == (0, ["agg/Worker.1"])
    assert machine.run("dynamo", "stop").code == 0  # the command that ends the daemon has an entry, too
    command.wait(30)
    commands = [one for one in entries(machine.folder / "audit") if one["kind"] == "command"]
    assert [(one["command"], one["status"]) for one in commands] == [("serve", 200), ("stop", 200)]


@together
def test_the_example_sums_up(machine: Any) -> None:
    command, url = served(machine)
    assert [ask(machine, url, BODY) for _ in range(3)] == [200] * 3
    assert ask(machine, url, BODY, "another") == 401
    machine.until(lambda: len(shown(machine)) == 5)
    text = machine.run("dynamo", "audit", "--output", "json").out
    script = Path(__file__).parents[4] / "examples/audit/use_by_key.py"
    done = subprocess.run([sys.executable, script], input=text, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("team-a: 3 requests, ")
    assert "(no key): 1 requests, 0 tokens, 1 errors" in done.stdout
    command.end()


@together
def test_mistakes_name_the_setting_and_what_is_allowed(machine: Any) -> None:
    (machine.folder / "open").mkdir(mode=0o755)
    wrong = machine.run("dynamo", "audit", "--folder", machine.folder / "none")
    assert "there are no audit files" in wrong.mistake()
    assert "1h30m" in machine.run("dynamo", "audit", "--since", "soon").mistake()
    assert "4xx" in machine.run("dynamo", "audit", "--status", "bad").mistake()
    words = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")
    few = machine.run("dynamo", *words, "--Frontend.audit_files=0").mistake()
    assert "audit_files" in few
    proxy = machine.run("dynamo", *words, "--Frontend.trusted_proxies=proxy").mistake()
    assert "trusted_proxies" in proxy
    assert "10.0.0.0/8" in proxy
    shared = machine.run("dynamo", *words, f"--Frontend.audit_dir={machine.folder}/open")
    assert shared.code != 0
    assert "audit_dir: others may use" in shared.err
