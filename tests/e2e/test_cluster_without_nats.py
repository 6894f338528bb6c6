"""New requests while the only NATS server is killed or frozen: 503, since no worker was reached."""

import http.client
import json
import os
import signal
import time
from typing import Any

import pytest

from .asking import chat_body, request_of
from .nodes import Servers, front, instances, worker

CLIENT_TIMEOUT_S = 60.0


def ask(url: str, **fields: Any) -> tuple[int, str, str | None]:
    """Status, the error's code, and Retry-After."""
    connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=CLIENT_TIMEOUT_S)
    try:
        connection.request(*request_of("/v1/chat/completions", chat_body("hello", max_tokens=3, **fields)))
        response = connection.getresponse()
        body = json.loads(response.read())
        return response.status, body.get("error", {}).get("code", ""), response.headers["Retry-After"]
    finally:
        connection.close()


@pytest.mark.parametrize(("how", "stream"), [("killed", True), ("frozen", False)])
def test_requests_are_refused_until_it_is_back(machine: Any, servers: Servers, how: str, stream: bool) -> None:
    _, url = front(machine, servers)
    for node in ("two", "three"):
        worker(machine, servers, node, speed=10)
    machine.until(lambda: instances(machine, url) == ["three", "two"])
    assert ask(url)[0] == 200
    pid = next(server.pid for name, server in servers.servers.items() if "nats" in name)
    if how == "killed":
        servers.kill(next(name for name in servers.servers if "nats" in name))
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        refused = []
        within = time.monotonic() + 10
        while time.monotonic() < within:
            refused.append(ask(url, stream=stream))
            time.sleep(0.2)
        assert {status for status, _, _ in refused} == {503}, refused
        assert all(code in ("no_workers", "cluster_lost") for _, code, _ in refused), refused
        assert all(after is not None and 1 <= int(after) <= 60 for _, _, after in refused), refused
    finally:
        if how == "frozen":
            os.kill(pid, signal.SIGCONT)
    servers.up()
    machine.until(lambda: ask(url)[0] == 200, 30.0)
    assert [ask(url)[0] for _ in range(10)] == [200] * 10
