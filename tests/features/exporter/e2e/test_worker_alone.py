"""Probes of a real daemon with a worker."""

import json
from typing import Any


def answers(machine: Any, url: str) -> int:
    """The status of the liveness probe; 0 while nobody listens."""
    try:
        status: int = machine.ask(url, "/health/live")[0]
    except OSError:
        return 0
    return status


def test_a_daemon_with_a_worker_is_live_and_ready(machine: Any) -> None:
    port = machine.port()
    env = {"DYN_SYSTEM_PORT": str(port)}
    started = machine.start("dynamo-run", "in=dyn://ns.backend.generate", "out=echo", "sample", **env)
    started.prints("ready")
    url = f"http://localhost:{port}"
    machine.until(lambda: answers(machine, url) == 200)
    machine.until(lambda: machine.ask(url, "/health/ready")[0] == 200)
    progress = json.loads(machine.ask(url, "/health/progress")[1])
    assert progress["status"] == "healthy"
    assert [one["state"] for one in progress["processes"]] == ["Ready"]
    assert "dynamod_" in machine.ask(url, "/metrics")[1]
    started.end()
