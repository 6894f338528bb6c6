"""Two nodes, a real NATS and a real etcd between them."""

import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dynamod.daemon import infra
from dynamod.preprocess.locate import locate

SLOW = 25.0


def port() -> int:
    """A free port that no client is given: while its server is down, nobody else may happen to sit on it."""
    for number in random.sample(range(15_000, 30_000), 100):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", number))
            except OSError:
                continue
            return number
    raise AssertionError("no port is free")


class Servers:
    """NATS and etcd on free ports; each can be stopped, frozen and started again with its data."""

    def __init__(self, machine: Any) -> None:
        self.folder = Path(machine.folder) / "infra"
        self.ports = {"nats_port": port(), "etcd_port": port()}
        self.up()

    def up(self) -> None:
        """Start what does not run."""
        self.servers = {server.name: server for server in infra.up(self.folder, **self.ports)}

    def kill(self, name: str) -> None:
        """End one at once, and wait until it is gone."""
        os.kill(self.servers[name].pid, signal.SIGKILL)
        while self.servers[name].lives:
            time.sleep(0.005)

    @property
    def env(self) -> dict[str, str]:
        return infra.environment(list(self.servers.values()))


@pytest.fixture
def servers(machine: Any) -> Iterator[Servers]:
    started = Servers(machine)
    yield started
    infra.down(started.folder)


def on(machine: Any, servers: Servers, node: str, **more: str) -> dict[str, str]:
    """What a command on a node of that name is told: its own socket is its own daemon."""
    folder = machine.folder / node
    folder.mkdir(exist_ok=True)
    return {
        **servers.env,
        "DYNAMOD_CLUSTER": "auto",
        "DYNAMOD_NODE": node,
        "DYNAMOD_SOCKET": str(folder / "d.sock"),
        **more,
    }


def models(machine: Any, url: str) -> list[str]:
    return sorted(model["id"] for model in json.loads(machine.ask(url, "/v1/models")[1])["data"])


def fast(machine: Any, speed: float = 1) -> Path:
    path = Path(machine.folder) / f"mocker-{speed}.json"
    path.write_text(json.dumps({"speedup_ratio": speed, "block_size": 16, "num_gpu_blocks": 65536}))
    return path


def long_model(machine: Any) -> Path:
    """The sample's tokenizer under a longer context."""
    folder = Path(machine.folder) / "long"
    shutil.copytree(locate("sample"), folder, ignore=shutil.ignore_patterns("*.safetensors", "*.gguf"))
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 1_000_000
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def worker(machine: Any, servers: Servers, node: str, *words: Any, speed: float = 1) -> Any:
    started = machine.start(
        *("dynamo-run", "in=dyn://llama3B.backend.generate", "out=mocker", "sample", "--extra-engine-args"),
        *(fast(machine, speed), *words),
        **on(machine, servers, node),
    )
    started.prints("ready")
    return started


def front(machine: Any, servers: Servers, *words: Any) -> tuple[Any, str]:
    started = machine.start(
        "dynamo-run", "in=http", "out=auto", "--http-port", 0, *words, **on(machine, servers, "one")
    )
    return started, started.ready()


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
    fields = {"max_tokens": 300, "ignore_eos": True}
    whole = [machine.chat(url, f"topic {number}", **fields) for number in range(4)]
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(4)]
    rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / "two/d.sock")[1]
    os.kill(next(row["pid"] for row in rows if row["component"] == "Worker"), signal.SIGKILL)
    assert [stream.read().text for stream in streams] == whole
    text = machine.ask(url, "/metrics")[1]
    lines = [line for line in text.splitlines() if "migration_duration_seconds_bucket" in line and 'le="0.25"' in line]
    [fast] = [line for line in lines if 'outcome="success"' in line]
    assert float(fast.rpartition(" ")[2]) >= 1, "a quarter of a second is far above the bound, and below any clock"


def test_a_stopped_remote_worker_is_left_and_its_node_says_so(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    for node in ("two", "three"):
        worker(machine, servers, node)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    fields = {"max_tokens": 500, "ignore_eos": True}
    whole = [machine.chat(url, f"topic {number}", **fields) for number in range(2)]
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / "two/d.sock")[1]
    pid = next(row["pid"] for row in rows if row["component"] == "Worker")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert [stream.read().text for stream in streams] == whole
    finally:
        os.kill(pid, signal.SIGCONT)


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


# Servers that fail.


def test_etcd_stops_and_comes_back(machine: Any, servers: Servers) -> None:
    """Nothing that runs notices; what comes meanwhile is known when etcd is back."""
    _, url = front(machine, servers)
    worker(machine, servers, "two")
    machine.until(lambda: models(machine, url) == ["sample"])
    servers.kill("etcd")
    stream = machine.stream(url, "hello", max_tokens=300, ignore_eos=True)
    late = worker(machine, servers, "three", "--model-name", "late")
    time.sleep(2)
    assert models(machine, url) == ["sample"]
    assert machine.chat(url, "still here", max_tokens=3)
    servers.up()
    machine.until(lambda: models(machine, url) == ["late", "sample"])
    stream.read()
    assert (stream.finish, stream.done) == ("length", True)
    late.end()
    machine.until(lambda: models(machine, url) == ["sample"])


def test_etcd_loses_its_data(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    worker(machine, servers, "two")
    machine.until(lambda: models(machine, url) == ["sample"])
    servers.kill("etcd")
    shutil.rmtree(servers.folder / "etcd")
    servers.up()
    for _ in range(30):
        assert models(machine, url) == ["sample"]
        time.sleep(0.1)
    assert machine.chat(url, "still here", max_tokens=3)
    worker(machine, servers, "three", "--model-name", "new")
    machine.until(lambda: models(machine, url) == ["new", "sample"])


def test_nats_stops_in_mid_stream_and_comes_back(machine: Any, servers: Servers) -> None:
    """What cannot go on anywhere ends with an error within its bound, not before a moment of patience."""
    _, url = front(machine, servers)
    worker(machine, servers, "two")
    machine.until(lambda: models(machine, url) == ["sample"])
    stream = machine.stream(url, "hello", max_tokens=400, ignore_eos=True)
    servers.kill("nats-server")
    begun = time.monotonic()
    stream.read()
    assert time.monotonic() - begun < 10
    assert stream.error is not None
    assert not stream.done
    status, text = machine.ask(url, "/v1/chat/completions", {"model": "sample", "messages": [], "max_tokens": 1})
    assert status in (400, 503), text
    local = worker(machine, servers, "one", "--model-name", "local")
    machine.until(lambda: "local" in models(machine, url))
    body = {"model": "local", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    assert machine.ask(url, "/v1/chat/completions", body)[0] == 200, "mail inside the node does not need NATS"
    servers.up()

    def answers() -> bool:
        body["model"] = "sample"
        return bool(machine.ask(url, "/v1/chat/completions", body)[0] == 200)

    machine.until(answers)
    local.end()


def test_nats_restarts_under_streams(machine: Any, servers: Servers) -> None:
    """With another worker to go to, or a quick restart, no text is lost."""
    _, url = front(machine, servers)
    for node in ("one", "two"):
        worker(machine, servers, node)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    fields = {"max_tokens": 400, "ignore_eos": True}
    whole = [machine.chat(url, f"topic {number}", **fields) for number in range(2)]
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    servers.kill("nats-server")
    servers.up()
    assert [stream.read().text for stream in streams] == whole


def test_brokers_late_at_start(machine: Any, servers: Servers) -> None:
    for name in ("nats-server", "etcd"):
        servers.kill(name)
    door, url = front(machine, servers)
    second = worker(machine, servers, "two")
    machine.until(lambda: "etcd" in door.err and "does not answer" in door.err, 10)
    machine.until(
        lambda: "NATS" in second.err or "NATS" in machine.run("dynamo", "logs", **on(machine, servers, "two")).out, 10
    )
    servers.up()
    machine.until(lambda: models(machine, url) == ["sample"])
    machine.until(
        lambda: (
            machine.ask(
                url,
                "/v1/chat/completions",
                {
                    "model": "sample",
                    "messages": [{"role": "user", "content": "x"}],
                    "max_tokens": 2,
                },
            )[0]
            == 200
        )
    )


def test_the_front_door_restarts_and_workers_free_its_streams(machine: Any, servers: Servers) -> None:
    door, url = front(machine, servers)
    worker(machine, servers, "two")
    machine.until(lambda: models(machine, url) == ["sample"])
    stream = machine.stream(url, "hello", max_tokens=1000, ignore_eos=True)
    door.kill()
    stream.close()

    def idle() -> bool:
        view = machine.run("dynamo", "top", "--once", "--output", "json", **on(machine, servers, "two")).json
        [row] = [row["worker"] for row in view["processes"] if row["worker"] is not None]
        return bool(row["running"] == 0)

    machine.until(idle, 10)
    _, url = front(machine, servers)
    machine.until(lambda: models(machine, url) == ["sample"])
    assert machine.chat(url, "hello", max_tokens=3)


def test_a_prompt_above_the_brokers_limit(machine: Any, servers: Servers) -> None:
    """The server takes 1 MB; the prompt's ids alone are more."""
    _, url = front(machine, servers)
    big = machine.start(
        *("dynamo-run", "in=dyn://big", "out=mocker", long_model(machine), "--model-name", "long"),
        *("--extra-engine-args", fast(machine, 1000)),
        **on(machine, servers, "two"),
    )
    big.prints("ready")
    machine.until(lambda: models(machine, url) == ["long"])
    body = {"model": "long", "prompt": [7] * 300_000, "max_tokens": 3}
    status, text = machine.ask(url, "/v1/completions", body)
    assert status == 200, text[:300]
    assert json.loads(text)["usage"]["prompt_tokens"] == 300_000
