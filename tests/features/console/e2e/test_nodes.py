"""The console of a cluster: all nodes in one picture, changes at another node, and a node that is cut off."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.asking import chat_body
from tests.e2e.nodes import Servers, front, instances, worker


def pids(machine: Any, node: str) -> list[int]:
    """The daemon of a node and its processes."""
    daemon = int((machine.folder / node / "d.sock.lock").read_text().split()[0])
    return [daemon, *map(int, Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split())]


def test_all_nodes_are_seen_and_one_that_is_cut_off(machine: Any, servers: Servers, browse: Callable[..., Any]) -> None:
    _, url = front(machine, servers, "--console-admin")
    worker(machine, servers, "two", env={"DYNAMOD_REMOTE_COMMANDS": "all"})
    machine.until(lambda: instances(machine, url) == ["two"])
    page = browse()
    page.open(url)
    machine.ask(url, "/v1/chat/completions", {**chat_body("hello"), "max_tokens": 8})
    page.sees("svg .tile.good", "Worker.0")
    page.sees("svg .title", "two/run-mocker · Worker · 1 · aggregated · sample")
    page.sees("td", "this one")
    nodes = page.page.get_by_role("region", name="Nodes").get_by_role("row")
    row = nodes.filter(has_text=re.compile(r"^two"))
    machine.until(lambda: "answers" in row.inner_text())
    assert page.find() == []
    page.shoot("console-nodes-light")

    page.go("Workers")
    page.sees("td a", "two/run-mocker/Worker.0").click()
    page.sees(".log", "engine")
    page.page.get_by_role("button", name="Restart", exact=True).click()
    page.page.locator("dialog[open]").get_by_role("button", name="Restart", exact=True).click()
    page.sees(".said", "done")

    page.go("Overview")
    stopped = pids(machine, "two")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        page.sees("svg .silent .title", "two")
        page.sees(".problems strong", "node two")
        machine.until(lambda: "answers" not in row.inner_text())
        page.sees(".connection.live")
        page.shoot("console-cut-off-light")
        assert page.find() == []
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    machine.until(lambda: page.page.locator("svg .silent").count() == 0)
    page.sees("svg .tile", "Worker.0")
    assert page.errors == []
