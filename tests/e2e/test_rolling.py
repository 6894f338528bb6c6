"""Two nodes of the last release are replaced by this one, one after the other, under streams: none is cut.

The last release is the first commit whose daemons have a migration that this release must work with.
"""

import json
import signal
from typing import Any

from dynamod import __version__

from .nodes import Servers, on
from .old import LAST_RELEASE, checkout, environment

NODE = """\
graphs:
- target: graphs.agg_router:Frontend
  config: configs/agg_router.yaml
  overrides:
  - --Frontend.port={port}
  - --Worker.engine=mocker
  - --Worker.model=sample
  - '--Worker.engine_args={{"speedup_ratio": 1, "block_size": 16, "num_gpu_blocks": 65536}}'
  - --Worker.ServiceArgs.workers=1
"""
TOKENS, FEW = 800, 50
"""Of answers that are to last while a node is stopped, and of others."""
TEXTS = [f"topic {number}" for number in range(16)]


class Node:
    """A service with a graph of its own: frontend and one worker. `old`: it runs the last release."""

    def __init__(self, machine: Any, servers: Servers, name: str) -> None:
        self.machine, self.name = machine, name
        self.env = on(machine, servers, name)
        self.url = f"http://127.0.0.1:{machine.port()}"
        self.file = machine.folder / name / "dynamod.yaml"
        self.file.write_text(NODE.format(port=self.url.rpartition(":")[2]))

    def start(self, *, old: bool = False) -> None:
        """Start it, and wait until its frontend serves the model."""
        env = {**self.env, **(environment(LAST_RELEASE) if old else {})}
        cwd = checkout(LAST_RELEASE).name if old else None
        self.daemon = self.machine.start("dynamod", "--config", self.file, cwd=cwd, **env)
        self.machine.until(lambda: self.machine.serves(self.url), 60, f"{self.name} serves: {self.daemon.err}")
        self.daemon.tree()

    def stop(self) -> None:
        """Stop it as a service manager does."""
        assert self.daemon.end(signal.SIGTERM, 45).code == 0, self.daemon.err

    def instances(self) -> list[str]:
        """Nodes whose workers its frontend knows."""
        health = json.loads(self.machine.ask(self.url, "/health")[1])
        return sorted(one["node"] for one in health["instances"])

    def streams(self, count: int = len(TEXTS), **more: Any) -> list[Any]:
        return [self.machine.stream(self.url, text, ignore_eos=True, **more) for text in TEXTS[:count]]

    def version(self) -> str:
        return str(self.machine.raw("GET", "/v1/status", socket_path=self.env["DYNAMOD_SOCKET"])[1]["version"])

    def migrations(self) -> int:
        """Answers that have continued at another worker."""
        lines = self.machine.ask(self.url, "/metrics")[1].splitlines()
        found = [line for line in lines if "migration_duration_seconds_count" in line and 'outcome="success"' in line]
        return round(sum(float(line.rpartition(" ")[2]) for line in found))


def whole(streams: list[Any]) -> list[str]:
    """The texts of streams that all end as they should."""
    read = [stream.read() for stream in streams]
    assert {(one.finish, one.done, json.dumps(one.error)) for one in read} == {("length", True, "null")}
    return [one.text for one in read]


def test_two_nodes_are_upgraded_one_after_the_other_and_no_stream_is_cut(machine: Any, servers: Servers) -> None:
    one, two = Node(machine, servers, "one"), Node(machine, servers, "two")
    for node in (one, two):
        node.start(old=True)
    machine.until(lambda: one.instances() == two.instances() == ["one", "two"], 30)
    expected = whole(one.streams(max_tokens=TOKENS))
    assert len(set(expected)) == len(TEXTS)

    # the second node: its worker leaves and comes back under streams of the first, whose frontend is the old one
    running = one.streams(max_tokens=TOKENS)
    assert {"one", "two"} <= set(one.instances())
    two.stop()
    two.start()
    assert (one.version(), two.version()) == ("0.1.0", __version__)
    assert whole(running) == expected
    assert one.migrations() > 0
    machine.until(lambda: one.instances() == two.instances() == ["one", "two"], 30)
    short = whole(one.streams(max_tokens=FEW))  # the old frontend asks the new worker too
    assert all(text.startswith(beginning) for text, beginning in zip(expected, short, strict=True))

    # the first node: streams of the new frontend are at its old worker, and its own are finished before it ends
    running, own = two.streams(max_tokens=TOKENS), one.streams(4, max_tokens=FEW)
    one.stop()
    assert whole(own) == short[:4]
    one.start()
    assert whole(running) == expected
    assert two.migrations() > 0
    machine.until(lambda: one.instances() == two.instances() == ["one", "two"], 30)
    for node in (one, two):
        assert whole(node.streams(max_tokens=FEW)) == short
        node.daemon.tree()
