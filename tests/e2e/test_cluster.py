"""Two and three nodes, a real NATS and a real etcd between them."""

import json
import os
import shutil
import signal
from itertools import pairwise
from typing import Any

import pytest

from dynamod.preprocess.locate import locate

from .nodes import Servers, front, models, on, put, worker
from .together import together


@together
def test_a_model_comes_and_goes_with_its_node(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    assert models(machine, url) == []
    second = worker(machine, servers, "two")
    machine.until(lambda: models(machine, url) == ["sample"])
    alone = machine.chat(url, "hello", max_tokens=50)
    assert machine.stream(url, "hello", max_tokens=50).read().text == alone
    health = json.loads(machine.ask(url, "/health")[1])
    assert [one["node"] for one in health["instances"]] == ["two"]
    second.end()
    machine.until(lambda: models(machine, url) == [], 2.0)


@pytest.mark.parametrize("mode", ["random", "round-robin", "kv"])
@together
def test_router_modes_across_nodes(machine: Any, servers: Servers, mode: str) -> None:
    _, url = front(machine, servers, "--router-mode", mode)
    for node in ("two", "three"):
        worker(machine, servers, node, speed=20)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    long = "one two three four five six seven " * 20
    for number in range(16):
        text = long if mode == "kv" else f"text {number}"
        begun = machine.begin(url, text, request=f"r{number}", max_tokens=3, ignore_eos=True)
        begun.answer()
    socket = machine.folder / "one/d.sock"
    chosen = [machine.raw("GET", f"/v1/requests/r{number}/decision", socket_path=socket)[1][-1] for number in range(16)]
    homes = {record["chosen"] for record in chosen}
    if mode == "kv":
        assert chosen[-1]["overlap"] > 0, "KV events cross nodes"
    else:
        assert len(homes) == 2
    if mode == "round-robin":
        assert all(a["chosen"] != b["chosen"] for a, b in pairwise(chosen))


def test_kill_of_a_remote_worker_is_noticed_at_once(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    for node in ("two", "three"):
        worker(machine, servers, node)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    fields = {"max_tokens": 200, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(4)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(4)]
    rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / "two/d.sock")[1]
    os.kill(next(row["pid"] for row in rows if row["component"] == "Worker"), signal.SIGKILL)
    assert [stream.read().text for stream in streams] == whole
    text = machine.ask(url, "/metrics")[1]
    lines = [line for line in text.splitlines() if "migration_duration_seconds_bucket" in line and 'le="0.25"' in line]
    [fast] = [line for line in lines if 'outcome="success"' in line]
    assert float(fast.rpartition(" ")[2]) >= 1, "a quarter of a second is far above the bound, and below any clock"


@pytest.mark.slow
def test_a_stopped_remote_worker_is_left_and_its_node_says_so(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    for node in ("two", "three"):
        worker(machine, servers, node)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    fields = {"max_tokens": 500, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(2)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / "two/d.sock")[1]
    pid = next(row["pid"] for row in rows if row["component"] == "Worker")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert [stream.read().text for stream in streams] == whole
    finally:
        os.kill(pid, signal.SIGCONT)


@together
def test_a_graph_spread_by_service_names(machine: Any, servers: Servers) -> None:
    words = ("serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0")
    door = machine.start("dynamo", *words, "--service-name", "Frontend", **on(machine, servers, "one"))
    url = door.ready()
    for node in ("two", "three"):
        more = ("--service-name", "Worker", "--Worker.ServiceArgs.workers=1")
        machine.start("dynamo", *words, *more, **on(machine, servers, node)).ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    assert machine.chat(url, "hello", max_tokens=4)


SPREAD = """\
graph: graphs.agg_router:Frontend
Frontend: {port: 0, ServiceArgs: {nodes: one}}
Processor: {router_mode: kv, ServiceArgs: {nodes: one}}
Worker:
  engine: mocker
  model: sample
  engine_args: {speedup_ratio: 10, block_size: 16}
  ServiceArgs: {workers: 2, nodes: [two, three]}
"""


@together
def test_a_graph_spread_by_its_config(machine: Any, servers: Servers) -> None:
    """The same command on each node."""
    (machine.folder / "spread.yaml").write_text(SPREAD)
    started = {
        node: machine.start("dynamo", "serve", "-f", "spread.yaml", **on(machine, servers, node))
        for node in ("one", "two", "three")
    }
    urls = {node: command.ready() for node, command in started.items()}
    assert [bool(urls[node]) for node in ("one", "two", "three")] == [True, False, False]
    machine.until(lambda: len(json.loads(machine.ask(urls["one"], "/health")[1])["instances"]) == 4)
    assert machine.chat(urls["one"], "hello", max_tokens=4)
    fourth = machine.run("dynamo", "serve", "-f", "spread.yaml", **on(machine, servers, "four"))
    assert "no service of this graph is placed on node 'four'" in fourth.err.splitlines()[-1]
    assert "one, three, two" in fourth.err


@pytest.mark.slow
def test_static_workers_need_only_nats(machine: Any, servers: Servers) -> None:
    """Both commands of the guide, on two nodes that do not know of each other."""

    def alone(node: str) -> dict[str, str]:
        return {key: value for key, value in on(machine, servers, node).items() if key != "ETCD_ENDPOINTS"}

    address = "dyn://dynamo.backend.generate"
    flags = ("--model-name", "mine", "--model-path", "sample", "--http-port", 0)
    url = machine.start("dynamo-run", "in=http", f"out={address}", *flags, **alone("one")).ready()
    for _ in range(2):
        words = (f"in={address}", "out=mocker", "sample", "--static-worker", "--context-length", 128)
        static = machine.start("dynamo-run", *words, **alone("two"))
        static.prints("ready")
        machine.until(lambda: models(machine, url) == ["mine"])
        assert machine.chat(url, "hello", model="mine", max_tokens=5)
        other = machine.run("dynamo-run", *words, **alone("three"))
        assert "serves dyn://dynamo.backend.generate already, on another node" in other.err.splitlines()[-1]
        static.end()
        machine.until(lambda: models(machine, url) == [])


@together
def test_a_front_door_without_the_models_files_fetches_them(machine: Any, servers: Servers) -> None:
    """The same path is the worker's folder there, and nothing here."""
    two = on(machine, servers, "two")
    shutil.copytree(locate("sample"), machine.folder / "two/model")
    one = on(machine, servers, "one", XDG_CACHE_HOME=str(machine.folder / "cache"))
    words = ("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    door = machine.start(*words, **one)
    url = door.ready()
    far = ("in=dyn://far", "out=echo_core", "/proc/self/cwd/model", "--model-name", "far")
    machine.start("dynamo-run", *far, cwd=machine.folder / "two", **two).prints("ready")
    machine.until(lambda: models(machine, url) == ["far"])
    whole = machine.chat(url, "hello there", model="far", max_tokens=20)
    assert "hello there" in whole
    assert "fetching" in door.err
    door.end()
    again = machine.start(*words, **one)
    url = again.ready()
    machine.until(lambda: models(machine, url) == ["far"])
    assert machine.chat(url, "hello there", model="far", max_tokens=20) == whole
    assert "fetching" not in again.err, "they are kept"


@together
def test_values_of_other_systems_stop_no_node(machine: Any, servers: Servers) -> None:
    """Cards of NVIDIA Dynamo, of a newer version, absurd ones and damage: every node serves on, and mends itself."""
    foreign = b'{"display_name":"Qwen/Qwen3-0.6B","slug":"qwen_qwen3-0_6b","model_info":null}'
    command, url = front(machine, servers)
    two = worker(machine, servers, "two")
    machine.until(lambda: models(machine, url) == ["sample"])
    for number in range(5):
        put(servers, f"v1/mdc/dynamo/backend/generate/694d9b2f1c2a3b4{number}", foreign)
    put(servers, "v1/mdc/dynamo/backend/generate/1", b'{"name":"zero","kv_cache_block_size":0}')
    put(servers, "v1/mdc/dynamo/backend/generate/2", b'{"name":"newer","kind":{"tokens":true}}')
    put(servers, "v1/instances/dynamo/backend/generate/3", b"\xff\x00")
    put(servers, "v1/exited/what", b"\xff")
    put(servers, "v1/quarantined/what", b"")
    put(servers, "v1/nobody/knows/this", b"{}")
    three = worker(machine, servers, "three")
    nodes = [("one", command), ("two", two), ("three", three)]
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    assert models(machine, url) == ["sample"]
    assert "hello" in machine.chat(url, "hello", max_tokens=50) or machine.chat(url, "hello", max_tokens=5)
    for node, running in nodes:
        status, facts = machine.raw("GET", "/v1/status", socket_path=machine.folder / node / "d.sock")
        assert status == 200, facts
        assert running.err.count("694d9b2f1c2a3b40") <= 2, "said once by each process"
    words = ("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    late = machine.start(*words, **on(machine, servers, "four")).ready()
    machine.until(lambda: models(machine, late) == ["sample"], what="also for one that comes later")
    two.end()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 1)
