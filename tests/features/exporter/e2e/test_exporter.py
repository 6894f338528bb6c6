"""The port of a daemon for Prometheus: what it serves, and what a port that is taken does."""

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from typing import Any

from tests.e2e.disagg import LONG, serve
from tests.e2e.together import together


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body; status 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def free_port() -> tuple[socket.socket, int]:
    """A port that its socket keeps."""
    taken = socket.create_server(("127.0.0.1", 0))
    return taken, taken.getsockname()[1]


@together
def test_all_processes_at_one_port_and_a_port_that_is_taken(machine: Any) -> None:
    taken, port = free_port()
    command = serve(machine, DYN_SYSTEM_PORT=str(port))
    url = command.ready()
    machine.until(lambda: f"no metrics at 127.0.0.1 port {port}" in command.err)
    machine.begin(url, LONG, request="one", max_tokens=4).answer()
    taken.close()
    machine.until(lambda: get(port, "/live")[0] == 200, 30)
    assert command.err.count("no metrics at") == 1, "it is said once"
    assert get(port, "/other")[0] == 404
    status, body = get(port, "/health")
    assert (status, json.loads(body)) == (200, {"status": "healthy"})
    text = get(port, "/metrics")[1]
    for line in (
        'dynamo_component_requests_total{dynamo_component="prefill",',
        'dynamo_component_requests_total{dynamo_component="backend",',
        'dynamo_frontend_requests_total{endpoint="chat_completions"',
        'vllm:num_requests_running{engine="0",model_name="sample"',
        "dynamod_logs_free_bytes{",
    ):
        assert line in text, line
    there = machine.run("dynamo", "inspect", "exporter", "--output", "json")
    assert f"http://127.0.0.1:{port}" in there.out
    worker = next(row["pid"] for row in machine.ps() if row["component"] == "Worker")
    os.kill(worker, signal.SIGSTOP)
    machine.until(lambda: get(port, "/health")[0] == 503, 20)
    os.kill(worker, signal.SIGCONT)
    machine.until(lambda: get(port, "/health")[0] == 200, 20)
    command.end()
    assert get(port, "/live")[0] == 0


def test_a_wrong_port_is_one_line(machine: Any) -> None:
    done = machine.run("dynamo-run", "in=stdin", "out=echo_core", "sample", text="hi", DYN_SYSTEM_PORT="70000")
    assert done.code != 0
    assert "DYN_SYSTEM_PORT=70000 is no port" in done.err
    assert "Traceback" not in done.err
