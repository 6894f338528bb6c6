"""A change that takes a model's last worker away is refused, asked about in a terminal, and done with `--force`."""

import os
import select
import signal
import time
from typing import Any

from .nodes import Servers, front, models, on, worker
from .together import together

CHANGES = (("drain", "Worker"), ("drain", "agg/Worker.0"), ("scale", "Worker", "0"), ("switch", "Worker", "prefill"))


def in_terminal(machine: Any, *words: str, answer: bytes) -> tuple[int, str]:
    """Run a command in a terminal and answer its question; its exit code and all that it showed."""
    terminal, process = machine.terminal("dynamo", *words)
    shown, end = b"", time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(terminal, 4096)
            except OSError:  # it has ended
                break
            if answer and b"[y/N]" in shown + data:
                os.write(terminal, answer)
                answer = b""
            shown += data
    finally:
        code = process.wait(60)
        os.close(terminal)
    return code, shown.decode()


@together
def test_the_last_worker_is_not_taken_away_by_chance(machine: Any) -> None:
    url = machine.agg("--Worker.engine=mocker").ready()
    row = machine.row("Worker")
    for words in CHANGES:
        refused = machine.run("dynamo", *words)
        assert refused.code == 1
        assert "model sample will not be served: " in refused.mistake()
        assert "--force" in refused.mistake()
        command, component, *rest = words
        body = {"replicas": 0} if command == "scale" else {"role": rest[0]} if rest else {}
        status, told = machine.raw("POST", f"/v1/{command}/{component}", body)
        assert (status, told["error"]["code"]) == (409, "last_worker"), told
        assert "`force`" in told["error"]["hint"]
    now = machine.row("Worker")
    assert (now["pid"], now["role"], now["state"]) == (row["pid"], row["role"], "Ready")
    assert machine.chat(url, "hi", max_tokens=2)

    for answer in (b"n\n", b"\n", b"\x04"):
        code, shown = in_terminal(machine, "drain", "Worker", answer=answer)
        assert "model sample will not be served: no worker other than Worker serves it; continue? [y/N]" in shown
        assert code == 1, shown
        assert machine.row("Worker")["pid"] == row["pid"]
    code, shown = in_terminal(machine, "switch", "Worker", "prefill", answer=b"y\n")
    assert code == 0, shown
    machine.until(lambda: not machine.serves(url))
    assert machine.run("dynamo", "switch", "Worker", "decode").code == 0, "a model that comes back needs no force"
    machine.until(lambda: machine.serves(url))

    assert machine.run("dynamo", "scale", "Worker", "2").code == 0
    machine.until(lambda: [one["state"] for one in machine.ps("Worker")] == ["Ready", "Ready"])
    os.kill(machine.ps("Worker")[1]["pid"], signal.SIGSTOP)  # it ends later than the daemon waits for
    assert machine.run("dynamo", "scale", "Worker", "1", "--timeout", "0.2").code == 0, "another one is there"
    status, told = machine.raw("POST", "/v1/scale/Worker", {"replicas": 0})
    assert (status, told["error"]["code"]) == (409, "last_worker"), "the worker that ends is no other one"
    assert machine.run("dynamo", "scale", "Worker", "2").code == 0
    machine.until(lambda: [one["state"] for one in machine.ps("Worker")] == ["Ready", "Ready"])
    assert machine.run("dynamo", "drain", "Worker.1").code == 0, "another one is there"
    status, told = machine.raw("POST", "/v1/scale/Worker", {"replicas": 0, "force": True})
    assert (status, told) == (200, [])


def test_the_worker_of_another_node_counts(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    for node in ("two", "three"):
        worker(machine, servers, node)
    sockets = {node: {"DYNAMOD_SOCKET": on(machine, servers, node)["DYNAMOD_SOCKET"]} for node in ("two", "three")}
    for node in sockets:  # each has heard of the other one
        path = machine.folder / node / "d.sock"
        machine.until(lambda path=path: machine.raw("GET", "/v1/status", socket_path=path)[1]["models"] == ["sample"])
    machine.until(lambda: len(models(machine, url)) == 1)
    assert machine.run("dynamo", "drain", "Worker", **sockets["two"]).code == 0
    refused = machine.run("dynamo", "drain", "Worker", **sockets["three"])
    assert "model sample will not be served" in refused.mistake()
    assert models(machine, url) == ["sample"]
    assert machine.run("dynamo", "drain", "Worker", "--force", **sockets["three"]).code == 0
    machine.until(lambda: models(machine, url) == [])
