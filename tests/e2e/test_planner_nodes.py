"""A planner over two nodes: replicas go where devices are free; the planner of the other node follows one that ends."""

import json
import os
import signal
from contextlib import closing
from typing import Any

from .disagg import SLOW
from .nodes import Servers, on
from .together import together

CONFIG = """\
graph: graphs.agg_planner:Frontend
Frontend: {port: 0, ServiceArgs: {nodes: one}}
Processor: {router_mode: kv, ServiceArgs: {nodes: one}}
Worker:
  engine: mocker
  model: sample
  migration_limit: 10
  engine_args: {speedup_ratio: 0.2, block_size: 16}
  ServiceArgs: {workers: 1, resources: {gpu: 1}}
Planner: {metric-pulling-interval: 0.2, adjustment-interval: 0.4, drain-timeout: 0.5}
"""


ROLES = f"""\
graph: graphs.disagg_planner:Frontend
Common: {{engine: mocker, model: sample, engine_args: {json.dumps({**SLOW, "num_gpu_blocks": 400})}}}
Frontend: {{port: 0, ServiceArgs: {{nodes: one}}}}
Processor: {{router_mode: kv, remote-prefill: true, max-local-prefill-length: 32, ServiceArgs: {{nodes: one}}}}
Worker: {{common-configs: [engine, model, engine_args], ServiceArgs: {{workers: 1, nodes: one}}}}
PrefillWorker: {{common-configs: [engine, model, engine_args], ServiceArgs: {{workers: 2, nodes: two}}}}
Planner:
  metric-pulling-interval: 0.2
  adjustment-interval: 0.4
  drain-timeout: 0.5
  optimization-target: load
  decode-kv-scale-up-threshold: 0.2
  decode-kv-scale-down-threshold: 0.1
  max-gpu-budget: 3
  prefill-min-endpoint: 2
"""


class Two:
    """Nodes one, with the frontend and one device, and two, with three."""

    def __init__(self, machine: Any, servers: Servers, config: str = CONFIG) -> None:
        self.machine, self.env = machine, {}
        (machine.folder / "two.yaml").write_text(config)
        self.commands = {}
        for node, gpus in (("one", "0"), ("two", "0,1,2")):
            self.env[node] = on(machine, servers, node, DYNAMOD_GPUS=gpus)
            self.commands[node] = machine.start("dynamo", "serve", "-f", "two.yaml", **self.env[node])
        self.url = self.commands["one"].ready()
        self.commands["two"].ready()

    def ask(self, node: str, method: str, path: str, body: Any = None) -> Any:
        socket = self.machine.folder / node / "d.sock"
        with closing(self.machine.unix(socket_path=socket)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            return json.loads(connection.getresponse().read())

    def workers(self) -> dict[str, int]:
        rows = {node: self.ask(node, "GET", "/v1/ps/Worker") for node in self.env}
        return {
            node: sum(row["component"] == "Worker" and row["state"] == "Ready" for row in rows[node]) for node in rows
        }

    def states(self) -> list[str]:
        """Of the planners of nodes one and two."""
        answers = [self.ask(node, "GET", "/v1/planner") for node in self.env]
        return [answer[0]["state"] if isinstance(answer, list) else "" for answer in answers]

    def plan(self, node: str, **arguments: Any) -> None:
        assert isinstance(self.ask(node, "POST", "/v1/plan", arguments), list)

    def target(self, component: str) -> int:
        """What the planner of node one has proposed last for a pool."""
        [found] = [one for one in self.ask("one", "GET", "/v1/planner") if one["component"] == component]
        return int(found["last"]["tick"]["target"]) if found["last"] else 0

    def planner(self, state: str) -> str:
        """The node whose planner is the active one, or the standby."""
        return ["one", "two"][self.states().index(state)]


@together
def test_replicas_go_where_devices_are_free_and_no_stream_is_lost(machine: Any, servers: Servers) -> None:
    two = Two(machine, servers)
    machine.until(lambda: sorted(two.states()) == ["active", "standby"], 20, "one of them decides")
    machine.until(lambda: two.workers() == {"one": 1, "two": 1})
    two.plan("one", action="set", min=4, max=4)
    machine.until(lambda: two.workers() == {"one": 1, "two": 3}, 20, "all devices in use")
    machine.until(lambda: len(json.loads(machine.ask(two.url, "/health")[1])["instances"]) == 4)
    fields = {"max_tokens": 400, "ignore_eos": True}
    streams = [machine.stream(two.url, f"topic {number}", **fields) for number in range(16)]
    two.plan("two", action="set", min=1, max=1)
    machine.until(lambda: sum(two.workers().values()) == 1, 20, "one worker")
    texts = [stream.read().text for stream in streams]
    assert [(stream.finish, stream.error) for stream in streams] == [("length", None)] * 16
    assert texts == machine.chats(two.url, [f"topic {number}" for number in range(16)], **fields)

    active = two.planner("active")
    [planner] = [row for row in two.ask(active, "GET", "/v1/ps") if row["component"] == "Planner"]
    os.kill(planner["pid"], signal.SIGKILL)
    expected = ["standby", "active"] if active == "one" else ["active", "standby"]
    machine.until(lambda: two.states() == expected, 20, "the other planner")
    assert sum(two.workers().values()) == 1
    two.plan(two.planner("standby"), action="set", min=3, max=3)  # up to 4 it may take 4, for what it has seen
    machine.until(lambda: sum(two.workers().values()) == 3, 20, "what it orders is done on both nodes")
    for command in two.commands.values():
        command.end()


@together
def test_without_etcd_nothing_is_scaled_and_requests_are_served(machine: Any, servers: Servers) -> None:
    two = Two(machine, servers)
    machine.until(lambda: sorted(two.states()) == ["active", "standby"], 20, "one of them decides")
    machine.until(lambda: two.workers() == {"one": 1, "two": 1})
    servers.kill("etcd")

    def refused() -> bool:
        answers = [two.ask(node, "GET", "/v1/planner") for node in two.env]
        return any(answer[0]["last"] and answer[0]["last"]["refused"] == "cluster_lost" for answer in answers)

    two.plan(two.planner("active"), action="set", min=4, max=4)
    machine.until(refused, 20, "it says so")
    assert machine.chat(two.url, "hello", max_tokens=4)
    assert two.workers()["one"] == 1
    servers.up()
    machine.until(lambda: sum(two.workers().values()) == 4, 30, "it goes on")
    for command in two.commands.values():
        command.end()


def test_a_worker_on_the_other_node_changes_its_role(machine: Any, servers: Servers) -> None:
    two = Two(machine, servers, ROLES)
    machine.until(lambda: sorted(two.states()) == ["active", "standby"], 20, "one of them decides")

    def rows() -> list[dict[str, Any]]:
        return [row for row in two.ask("two", "GET", "/v1/ps/PrefillWorker") if row["component"] == "PrefillWorker"]

    machine.until(lambda: [row["role"] for row in rows()] == ["prefill"] * 2, 20, "prefill workers")
    if two.planner("active") == "two":
        [planner] = [row for row in two.ask("two", "GET", "/v1/ps") if row["component"] == "Planner"]
        os.kill(planner["pid"], signal.SIGKILL)
        machine.until(lambda: two.states() == ["active", "standby"], 20, "the planner of node one decides")
    pids = {row["pid"] for row in rows()}
    load = [machine.stream(two.url, f"load {number}", max_tokens=3000, ignore_eos=True) for number in range(12)]
    machine.until(lambda: two.target("Worker") == 2, 30, "another worker that answers is wanted")
    two.plan("one", action="set", component="PrefillWorker", min=1)
    machine.until(lambda: sorted(row["role"] for row in rows()) == ["decode", "prefill"], 30, "one answers")
    records = [record for one in two.ask("one", "GET", "/v1/planner") for record in one["records"]]
    [there] = {record["switched"] for record in records if record["switched"]}
    assert there.startswith("PrefillWorker.")
    assert there.endswith(" on two becomes decode")
    assert {row["pid"] for row in rows()} == pids, "nobody was started again"
    for stream in load:
        stream.close()
    assert machine.chat(two.url, "hello", max_tokens=2)
    for command in two.commands.values():
        command.end()
