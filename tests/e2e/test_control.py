"""The control socket: every verb by the command line and by plain HTTP, and who may use it."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
WORDS = " ".join(map(str, range(100)))


@pytest.fixture(scope="module")
def served(shared: Any) -> Any:
    """A machine that serves the shipped graph; `url` is its frontend."""
    shared.command = shared.agg(DYN_TOKEN_ECHO_DELAY_MS="5")
    shared.url = shared.command.ready()
    return shared


def test_reading(served: Any) -> None:
    status = served.run("dynamo", "status", "--output", "json").json
    assert (status["pid"], status["ready"], status["ephemeral"]) == (served.daemon().pid, True, True)
    assert [graph["session"] for graph in status["graphs"]] == [f"dynamo serve pid {served.command.pid}"]
    assert status["socket"] == str(served.socket)
    assert status["graphs"][0]["urls"] == [served.url]
    raw = served.raw("GET", "/v1/status")
    assert raw[0] == 200
    assert raw[1].keys() == status.keys()
    shown = served.run("dynamo", "status").out
    assert f"pid {served.command.pid}" in shown
    assert f"agg: ready {served.url}" in shown

    rows = served.run("dynamo", "ps", "-o", "json").json
    assert [row["component"] for row in rows] == ["Worker", "Processor", "Frontend"]
    keys = {"graph", "component", "process", "state", "pid", "restarts", "uptime", "last_error", "gpus"}
    assert keys <= rows[0].keys()
    assert rows[0]["pid"] in {pid.pid for pid in served.command.tree()}

    assert "hello" in served.chat(served.url, "hello")
    every = served.run("dynamo", "logs", "-o", "json").json["lines"]
    assert any("engine echo_core serves model sample" in line for line in every)
    assert any("graph agg started" in line for line in every)
    worker = served.run("dynamo", "logs", "Worker", "-n", "1").out.splitlines()
    assert len(worker) == 1
    assert served.raw("GET", "/v1/logs/Worker?lines=1")[1]["lines"] == worker
    assert served.raw("GET", "/v1/logs?component=agg/ingress.0&lines=1")[0] == 200
    assert served.raw("GET", "/v1/logs?lines=0")[1]["lines"] == []

    index = served.raw("GET", "/v1")[1]
    assert {
        "/v1/restart",
        "/v1/scale",
        "/v1/switch",
        "/v1/drain",
        "/v1/stop",
        "/v1/serve",
        "/v1/reload",
        "/v1/plan",
        "/v1/set_trust",
    } == set(index["post"])
    assert set(index["get"]) == {
        *("/v1/status", "/v1/ps", "/v1/memory", "/v1/top", "/v1/logs", "/v1/inspect", "/v1/metrics", "/v1/planner"),
        *("/v1/requests/{id}/decision", "/v1/node", "/v1/nodes", "/v1/everywhere"),
        *("/v1/audit", "/v1/trust"),
    }


def test_following_logs(served: Any) -> None:
    follower = served.start("dynamo", "logs", "-f", "Frontend", "-n", "0")
    connection = served.unix()
    connection.request("GET", "/v1/logs?follow=1&lines=0")
    response = connection.getresponse()
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(response.readline, b"")), daemon=True)
    reader.start()
    served.until(lambda: served.chat(served.url, "hi") and "path=/v1/chat/completions" in follower.out)
    served.until(lambda: any(b"path=/v1/chat/completions" in line for line in lines))
    assert connection.sock is None or connection.sock.shutdown(socket.SHUT_RDWR) is None
    reader.join(5)
    response.close()
    connection.close()
    assert follower.end().code == 130


def test_inspect(served: Any) -> None:
    stream = served.stream(served.url, " ".join([WORDS] * 4))
    actors = served.run("dynamo", "inspect", "-o", "json").json
    by_path = {(one["process"], one["path"]): one for one in actors if "error" not in one}
    worker = by_path["agg/Worker.0", "/Worker"]
    assert worker["kind"] == "WorkerComponent"
    assert worker["details"]["open"] == 1
    assert worker["mailbox"]["depth"] == 0
    assert worker["mailbox"]["capacity"] > 0
    assert worker["incarnation"] == 1
    assert "current" in worker
    assert any("echo.py" in line for task in worker["tasks"] for line in task["stack"])
    assert by_path["agg/ingress.0", "/Processor"]["details"]["flights"] == 1
    assert by_path["dynamod", "/node"]["details"]["graphs"] == ["agg"]
    only = served.raw("GET", "/v1/inspect/Processor")[1]
    assert {one["path"] for one in only} == {"/Processor", "/Processor/dispatcher"}
    text = served.run("dynamo", "inspect", "/Worker").out
    assert "mailbox 0/" in text
    assert "task /Worker" in text
    unknown = served.run("dynamo", "inspect", "Nobody")
    assert "Nobody" in unknown.mistake()
    stream.close()


def families(text: str) -> dict[str, Any]:
    """Metric families by name; each has its head and stands once."""
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    assert [family.name for family in found if not family.documentation or family.type == "unknown"] == []
    return {family.name: family for family in found}


def value(family: Any, **labels: str) -> float:
    """The only sample with these labels."""
    (sample,) = [one for one in family.samples if labels.items() <= one.labels.items()]
    number: float = sample.value
    return number


def test_statistics_of_the_actors_are_metrics(served: Any) -> None:
    stream = served.stream(served.url, WORDS)
    shown = families(served.ask(served.url, "/metrics")[1])
    assert any(name.startswith("dynamo_frontend") for name in shown)
    own = {name: family for name, family in shown.items() if name.startswith("dynamod_")}
    assert {s.labels["process"] for family in own.values() for s in family.samples} == {"agg/ingress.0"}
    assert value(own["dynamod_actor_mailbox_depth"], actor="/Processor/dispatcher") == 0
    assert value(own["dynamod_actor_handled"], actor="/Processor/dispatcher") >= 1
    assert value(own["dynamod_processor_requests"]) >= 1
    assert value(own["dynamod_processor_flights"]) == 1
    assert value(own["dynamod_inbox_streams"], peer="agg.Worker.0") == 1
    assert value(own["dynamod_inbox_frames"], peer="agg.Worker.0") >= 1
    assert value(own["dynamod_child_restarts"], supervisor="/", child="Processor") == 0
    assert own["dynamod_processor_requests"].type == "counter"
    assert own["dynamod_processor_flights"].type == "gauge"

    connection = served.unix()
    connection.request("GET", "/v1/metrics")
    response = connection.getresponse()
    text = response.read().decode()
    assert (response.headers["Content-Type"], response.status) == ("text/plain; version=0.0.4; charset=utf-8", 200)
    connection.close()
    node = families(text)
    assert value(node["dynamod_process_answers"], process="agg/Worker.0") == 1
    assert value(node["dynamod_process_beat_age"], process="agg/Worker.0") < 5
    assert value(node["dynamod_child_restarts"], process="dynamod", supervisor="/agg", child="Worker.0") == 0
    assert value(node["dynamod_worker_open"], process="agg/Worker.0") == 1
    assert value(node["dynamod_worker_engine_tokens"], process="agg/Worker.0") >= 1
    assert value(node["dynamod_outbox_deltas"], process="agg/Worker.0") >= 1
    assert value(node["dynamod_processor_flights"], process="agg/ingress.0") == 1
    assert value(node["dynamod_registry_leases"], process="dynamod") >= 2
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    told = {one.name for family in node.values() if family.type != "histogram" for one in family.samples}
    assert {one.removesuffix("_total") for one in told} <= {one.removesuffix("_total") for one in named}
    stream.close()
    served.until(lambda: value(families(served.ask(served.url, "/metrics")[1])["dynamod_processor_flights"]) == 0)


def test_a_process_that_does_not_answer_is_a_finding(served: Any) -> None:
    row = served.row("Worker")
    os.kill(row["pid"], signal.SIGSTOP)
    try:
        answer = served.raw("GET", "/v1/inspect")[1]
    finally:
        os.kill(row["pid"], signal.SIGCONT)
    silent = [one for one in answer if one["process"] == "agg/Worker.0"]
    assert ["does not answer" in one["error"] for one in silent] == [True]
    assert any(one["process"] == "agg/ingress.0" and one["path"] == "/Frontend" for one in answer)


def test_scaling_cuts_no_stream(served: Any) -> None:
    up = served.run("dynamo", "scale", "Worker", 2, "-o", "json")
    assert up.code == 0, up.err
    served.until(lambda: [row["state"] for row in served.ps("Worker")] == ["Ready", "Ready"])
    served.command.tree()
    served.until(lambda: len(json.loads(served.ask(served.url, "/health")[1])["instances"]) == 2)
    streams = [served.stream(served.url, WORDS) for _ in range(4)]
    down = served.run("dynamo", "scale", "agg/Worker", 1)
    assert down.code == 0, down.err
    assert len(served.ps("Worker")) == 1
    texts = {stream.read().text for stream in streams}
    assert [(s.finish, s.error) for s in streams] == [("stop", None)] * 4
    assert len(texts) == 1
    assert WORDS in texts.pop()
    assert served.row("Worker")["restarts"] == 0

    # to nothing and back
    none = served.run("dynamo", "scale", "Worker", 0, "--force")
    assert (none.code, none.out.strip()) == (0, "no process is left")
    served.until(lambda: served.answers(served.url, "/health") == 503)
    assert served.raw("POST", "/v1/scale/Worker?replicas=1")[0] == 200
    served.until(lambda: served.serves(served.url))
    served.until(lambda: served.row("Worker")["state"] == "Ready")


def test_a_process_group_is_scaled_by_its_name_in_ps(served: Any) -> None:
    assert served.row("Processor")["process"] == "agg/ingress.0"
    assert served.run("dynamo", "scale", "ingress", 2).code == 0
    for component in ("Frontend", "Processor"):
        served.until(lambda name=component: [row["state"] for row in served.ps(name)] == ["Ready", "Ready"])
        assert {row["process"] for row in served.ps(component)} == {"agg/ingress.0", "agg/ingress.1"}
    served.command.tree()
    down = served.run("dynamo", "scale", "agg/ingress", 1)
    assert down.code == 0, down.err
    assert [row["process"] for row in served.ps("Processor")] == ["agg/ingress.0"]
    served.until(lambda: served.serves(served.url))


def test_restart_lets_streams_finish(served: Any) -> None:
    pid = served.row("Worker")["pid"]
    stream = served.stream(served.url, WORDS)
    done = served.run("dynamo", "restart", "Worker", "-o", "json")
    assert done.code == 0, done.err
    assert [row["component"] for row in done.json] == ["Worker"]
    stream.read()
    assert (stream.finish, stream.error) == ("stop", None)
    served.until(lambda: served.row("Worker")["state"] == "Ready")
    row = served.row("Worker")
    assert row["pid"] != pid
    assert row["last_error"] == ""
    served.command.tree()
    served.until(lambda: served.serves(served.url))
    ingress = served.raw("POST", "/v1/restart", {"component": "Frontend"})
    assert ingress[0] == 200
    assert [row["component"] for row in ingress[1]] == ["Frontend"]
    served.command.tree()
    assert "hello" in served.chat(served.url, "hello"), "the door opens when it knows the models"


def test_several_front_doors_share_the_port(served: Any) -> None:
    assert served.raw("POST", "/v1/scale/Frontend", {"replicas": 2})[0] == 200
    served.until(lambda: [row["state"] for row in served.ps("Frontend")] == ["Ready", "Ready"])
    served.command.tree()
    before = served.chat(served.url, "hello")
    assert {served.chat(served.url, "hello") for _ in range(20)} == {before}
    assert served.raw("POST", "/v1/drain/ingress.0")[0] == 200
    assert [row["process"] for row in served.ps("Frontend")] == ["agg/ingress.1"]
    assert served.chat(served.url, "hello") == before
    assert served.raw("POST", "/v1/scale/ingress.1", {"replicas": 2})[0] == 400
    assert served.raw("POST", "/v1/drain/ingress.0")[0] == 404


def test_changes_at_the_same_time_wait_for_each_other(served: Any) -> None:
    asked = [("restart", {}), ("scale", {"replicas": 2}), ("restart", {}), ("scale", {"replicas": 1}), ("restart", {})]
    answers: list[Any] = []

    def ask(command: str, body: Any) -> None:
        answers.append(served.raw("POST", f"/v1/{command}/Worker", body, seconds=30))

    threads = [threading.Thread(target=ask, args=one) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [status for status, _ in answers] == [200] * len(asked), answers
    served.until(lambda: {row["state"] for row in served.ps("Worker")} == {"Ready"})
    served.command.tree()
    assert served.raw("POST", "/v1/scale/Worker", {"replicas": 1})[0] == 200  # which scale came last is chance
    assert [row["state"] for row in served.ps("Worker")] == ["Ready"]
    served.command.tree()
    served.until(lambda: served.serves(served.url))


def test_replicas_that_drain_together_go_one_by_one(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="25")  # slow: all streams are open when a busy machine comes to look
    url = command.ready()
    assert machine.raw("POST", "/v1/scale/Worker", {"replicas": 3})[0] == 200
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * 3)
    command.tree()
    machine.until(lambda: machine.serves(url))
    streams = [machine.stream(url, "word " * 800) for _ in range(3)]
    asking = threading.Thread(target=machine.raw, args=("POST", "/v1/scale/Worker", {"replicas": 1, "timeout": 30}))
    asking.start()
    assert [stream.status for stream in streams] == [200] * 3
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")].count("Draining") == 2)
    seen: list[list[str]] = []
    for stream in streams:
        stream.close()
        until, looks = time.monotonic() + 0.6, len(seen) + 30  # on a busy machine both looks and ends take longer
        while time.monotonic() < until or len(seen) < looks:
            seen.append([row["state"] for row in machine.ps("Worker")])
    asking.join(30)
    assert ["Ready", "Draining"] in seen, "one has gone before the other"
    assert seen[-1] == ["Ready"]
    assert "Stopped" not in {state for states in seen for state in states}
    command.tree()


def test_what_is_asked_wrongly(served: Any) -> None:
    for method, path, body, status, says in [
        ("POST", "/v1/restart", {"component": "Nobody"}, 404, "Worker"),
        ("POST", "/v1/restart", {}, 400, "Worker"),
        ("POST", "/v1/restart", "{", 400, "JSON"),
        ("POST", "/v1/restart", [1], 400, "object"),
        ("POST", "/v1/restart/other/Worker", None, 404, "other/Worker"),
        ("POST", "/v1/scale/Worker", {"replicas": "two"}, 400, "two"),
        ("POST", "/v1/scale/Worker", {"replicas": -1}, 400, "-1"),
        ("POST", "/v1/scale/Worker", {"replicas": 1000}, 400, "256"),
        ("POST", "/v1/scale/Worker?replicas=x", None, 400, "x"),
        ("POST", "/v1/drain", {"component": "Worker", "timeout": "soon"}, 400, "soon"),
        ("POST", "/v1/stop/nothing", None, 404, "agg"),
        ("POST", "/v1/serve", {"graph": 3}, 400, "graph"),
        ("POST", "/v1/serve", {}, 400, "graph"),
        ("GET", "/v1/logs?lines=many", None, 400, "many"),
        ("GET", "/v1/logs?lines=-5", None, 400, "-5"),
        ("GET", "/v1/logs?after=3", None, 400, "after"),
        ("GET", "/v1/logs/Nobody", None, 404, "Nobody"),
        ("GET", "/v1/inspect/Nobody", None, 404, "Nobody"),
        ("GET", "/v1/nothing", None, 404, "/v1"),
        ("GET", "/v1/restart", None, 405, "/v1"),
        ("POST", "/v1/ps", None, 405, "/v1"),
    ]:
        got, answer = served.raw(method, path, body)
        assert got == status, (path, body, answer)
        assert set(answer) == {"error"}
        assert says in json.dumps(answer), (path, answer)
    assert all(row["state"] == "Ready" for row in served.ps())


def test_who_may_use_the_socket(served: Any) -> None:
    assert stat.S_IMODE(served.socket.stat().st_mode) == 0o660
    link = served.socket.with_name("d.sock.link")
    assert stat.S_IMODE(link.stat().st_mode) == 0o600
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    script = (
        "import os, sys, socket\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for line in (b'GET /v1/ps', b'POST /v1/stop', b'POST /v1/restart/Worker'):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "    s.sendall(line + b' HTTP/1.1\\r\\nHost: d\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "    print(s.recv(100).split()[1].decode())\n"
    )
    folder = served.folder
    words = [sys.executable, "-c", script, str(served.socket)]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert "PermissionError" in refused.stderr
    folder.chmod(0o755)
    served.socket.chmod(0o666)
    try:
        allowed = subprocess.run(words, capture_output=True, text=True, timeout=20)
    finally:
        served.socket.chmod(0o660)
        folder.chmod(0o700)
    assert allowed.stdout.split() == ["200", "403", "403"], allowed.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("how", ["os.setgroups([]); os.setgid(65533)", "os.setgroups([1, 65533]); os.setgid(65534)"])
def test_members_of_the_sockets_group_may_change_things(served: Any, how: str) -> None:
    script = (
        f"import os, sys, socket\n{how}; os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(b'POST /v1/restart/Nobody HTTP/1.1\\r\\nHost: d\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "print(s.recv(100).split()[1].decode())\n"
    )
    served.folder.chmod(0o755)
    os.chown(served.socket, -1, 65533)
    try:
        words = [sys.executable, "-c", script, str(served.socket)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    finally:
        served.folder.chmod(0o700)
        os.chown(served.socket, -1, os.getgid())
    assert done.stdout.split() == ["404"], done.stderr


def test_zz_drain_then_stop(served: Any) -> None:
    stream = served.stream(served.url, WORDS)
    done = served.run("dynamo", "drain", "Worker", "--force", "-o", "json")
    assert done.json == {"drained": "Worker"}
    stream.read()
    assert (stream.finish, stream.error) == ("stop", None)
    served.until(lambda: served.answers(served.url, "/health") == 503)
    stopped = served.run("dynamo", "stop", "-o", "json")
    assert stopped.json == {"stopping": "dynamod"}
    assert served.command.wait(6).code == 0
    served.command.gone(1)
    assert served.free(served.url)
    after = served.run("dynamo", "ps")
    assert after.code == 3
    assert "no daemon is running" in after.mistake()


def test_a_stale_socket_is_replaced_and_a_file_is_not(machine: Any) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(machine.socket))
    daemon = machine.start("dynamod")
    machine.until(lambda: machine.raw_status() == daemon.pid)
    held = machine.run("dynamod")
    assert held.code not in (0, 3)
    errors = [line for line in held.err.splitlines() if line.startswith("error: ")]
    assert [f"held by process {daemon.pid}" in line for line in errors] == [True], held.err
    assert machine.raw_status() == daemon.pid
    assert daemon.end(signal.SIGTERM).code == 0

    other = machine.folder / "e.sock"
    second = machine.start("dynamod", "--socket", other)
    machine.until(other.exists)
    assert machine.run("dynamo", "status", "--socket", other).code == 0
    assert machine.run("dynamo", "status", DYNAMOD_SOCKET=str(other)).code == 0
    assert machine.run("dynamo", "status").code == 3
    second.end()

    file = Path(machine.folder / "f.sock")
    file.write_text("mine")
    assert "f.sock" in machine.run("dynamod", "--socket", file).mistake()
    assert file.read_text() == "mine"
