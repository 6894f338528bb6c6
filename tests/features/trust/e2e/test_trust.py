"""Daemons over a real NATS and a real etcd that turn on the cluster secret, and strangers at the same servers."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dynamod.discovery.etcd.client import connect
from dynamod.discovery.etcd.settings import EtcdSettings
from tests.e2e.disagg import LONG, handoffs, serve
from tests.e2e.nodes import Servers, instances, on, worker
from tests.e2e.old import LAST_RELEASE, environment
from tests.e2e.together import together

STREAMS = 16
FORGED_PER_SECOND = 1000
NODES = ("one", "two", "three")


class House:
    """Node one with a frontend, others with a worker each. `env`: of each of their daemons."""

    def __init__(self, machine: Any, servers: Servers, **env: str) -> None:
        self.machine, self.servers, self.env = machine, servers, env
        self.url = self._front()

    def _front(self) -> str:
        words = ("dynamo-run", "in=http", "out=auto", "--http-port", 0)
        url: str = self.machine.start(*words, **self.where("one")).ready()
        return url

    def where(self, node: str) -> dict[str, str]:
        return {**on(self.machine, self.servers, node), **self.env}

    def join(self, *nodes: str, speed: float = 1) -> None:
        """Start a worker on each node, which the frontend then knows."""
        for node in nodes:
            worker(self.machine, self.servers, node, speed=speed, env=self.env)
        self.machine.until(lambda: instances(self.machine, self.url) == sorted(nodes))

    def dynamo(self, node: str, *words: str) -> Any:
        return self.machine.run("dynamo", *words, **self.where(node))

    def trust(self, node: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.dynamo(node, "trust", "show", "--output", "json").out)
        return shown

    def set(self, mode: str) -> None:
        """On one node after another, as a person would."""
        for node in NODES:
            done = self.dynamo(node, "trust", "set", mode)
            assert done.code == 0, done.err
            assert f"mode {mode}" in done.out

    def metric(self, node: str, name: str) -> float:
        return metric(self.machine, self.machine.folder / node / "d.sock", name)


def metric(machine: Any, socket: Path, name: str) -> float:
    """The sum of a metric over all processes of a node."""
    connection = machine.unix(socket_path=socket)
    connection.request("GET", "/v1/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@contextlib.contextmanager
def streaming(house: House) -> Iterator[list[str]]:
    """STREAMS clients that read one stream after another to its end meanwhile. Gives what each stream ended with."""
    ended, over = list[str](), threading.Event()

    def client(number: int) -> None:
        while not over.is_set():
            text = f"topic {number} {len(ended)}"
            stream = house.machine.stream(house.url, text, max_tokens=150, ignore_eos=True)
            assert stream.status == 200, stream.error
            stream.read()
            ended.append(stream.finish if stream.done and not stream.error else str(stream.error))

    with ThreadPoolExecutor(STREAMS) as pool:
        clients = [pool.submit(client, number) for number in range(STREAMS)]
        try:
            yield ended
        finally:
            over.set()
        for one in clients:
            one.result(60)


async def flood(servers: Servers, seconds: float) -> int:
    """Put forged registrations, also at keys of the other nodes; returns how many."""
    settings = EtcdSettings.from_environment(servers.env)
    assert settings is not None
    count, begun = 0, time.monotonic()
    async with connect(settings.endpoints[0], settings) as raw:
        items, _ = await raw.snapshot("v1/instances/")
        key, real = next((key, item) for key, item in items.items())
        base, _, _ = key.rpartition("/")
        await raw.grant(0x77, 60)
        await raw.put([(key, b"forged")], real.lease)
        while (passed := time.monotonic() - begun) < seconds:
            while count < passed * FORGED_PER_SECOND:
                await raw.put([(f"{base}/{2**40 + count + one:x}", real.value) for one in range(50)], 0x77)
                count += 50
            await asyncio.sleep(0.01)
    return count


def secret(machine: Any, name: str = "cluster.secret") -> str:
    path = str(machine.folder / name)
    done = machine.run("dynamo", "trust", "new", path)
    assert done.code == 0, done.err
    assert f"DYNAMOD_CLUSTER_SECRET_FILE={path}" in done.out
    return path


@together
def test_it_is_turned_on_under_streams_and_forged_registrations_change_nothing(machine: Any, servers: Servers) -> None:
    house = House(machine, servers, DYNAMOD_CLUSTER_SECRET_FILE=secret(machine), DYNAMOD_TRUST="off")
    house.join("two", "three", speed=0.5)
    with streaming(house) as ended:
        machine.until(lambda: len(ended) >= 4)
        for mode in ("accept", "require"):
            before = len(ended)
            house.set(mode)
            machine.until(lambda before=before: len(ended) >= before + 2 * STREAMS, 60)
            assert instances(machine, house.url) == ["three", "two"]
        shown = [house.trust(node) for node in NODES]
        assert [(one["mode"], one["refused"]) for one in shown] == [("require", 0)] * 3
        assert all(one["proven"] for one in shown)
        assert len({digest for one in shown for digest in one["digests"]}) == 1
        forged = asyncio.run(flood(servers, 4.0))
        assert forged >= 3 * FORGED_PER_SECOND
        assert instances(machine, house.url) == ["three", "two"]
        machine.until(lambda: house.trust("one")["refused"] >= forged)
        before = len(ended)
        machine.until(lambda: len(ended) >= before + STREAMS, 60)
    assert set(ended) == {"length"}, "no stream was cut"
    assert house.trust("one")["wrong"] == [{"node": "", "why": "unsigned", "count": house.trust("one")["refused"]}]
    assert house.metric("two", "dynamod_signing_proven_total") > 0
    assert house.metric("two", "dynamod_signing_refused_total") == 0, "no request was refused"
    found = json.loads(house.dynamo("one", "doctor", "--output", "json").out)
    assert any("not signed refused" in one["found"] for one in found if one["check"] == "trust"), found


@together
def test_commands_of_a_node_without_the_secret(machine: Any, servers: Servers) -> None:
    house = House(machine, servers, DYNAMOD_CLUSTER_SECRET_FILE=secret(machine))
    house.join("two")
    worker(machine, servers, "foe", env={"DYNAMOD_CLUSTER_SECRET_FILE": secret(machine, "other.secret")})
    stranger = on(machine, servers, "stranger")
    unaware = worker(machine, servers, "stranger")
    assert (unaware.out + unaware.err).count("nodes do not know each other") == 1, "one warning"
    machine.until(lambda: instances(machine, house.url) == ["foe", "stranger", "two"])
    for where in (stranger, {**on(machine, servers, "foe")}):
        machine.until(lambda where=where: machine.run("dynamo", "logs", "-n", "1", "two/", **where).code == 0)
        refused = machine.run("dynamo", "scale", "two/Worker", "2", **where)
        assert refused.code == 1
        assert "give both nodes a cluster secret (see dynamo trust)" in refused.err, refused.err
    scaled = house.dynamo("one", "scale", "two/Worker", "2", "--output", "json")
    assert [row["component"] for row in json.loads(scaled.out)] == ["Worker", "Worker"], scaled.err
    found = json.loads(house.dynamo("one", "doctor", "--output", "json").out)
    differs = [one for one in found if one["check"] == "cluster secret"]
    assert len(differs) == 1
    assert "foe" in differs[0]["found"]
    for node in ("one", "two"):
        assert house.dynamo(node, "trust", "set", "require").code == 0
    machine.until(lambda: instances(machine, house.url) == ["two", "two"], 30)
    for where in (stranger, {**on(machine, servers, "foe")}):
        for words in (("logs", "two/"), ("stop", "two/")):
            refused = machine.run("dynamo", *words, **where)
            assert refused.code == 1
            assert refused.err.count("\n") == 1
            assert "does not take the request" in refused.err, refused.err
    assert house.dynamo("one", "logs", "-n", "1", "two/").code == 0
    assert house.dynamo("one", "stop", "two/").code == 0


@together
def test_the_last_release_beside_nodes_that_sign(machine: Any, servers: Servers) -> None:
    house = House(machine, servers, DYNAMOD_CLUSTER_SECRET_FILE=secret(machine))
    house.join("two")
    old = environment(LAST_RELEASE)
    worker(machine, servers, "old", env=old)
    words = ("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    url = machine.start(*words, **on(machine, servers, "before"), **old).ready()
    for frontend in (house.url, url):
        machine.until(lambda frontend=frontend: instances(machine, frontend) == ["old", "two"])
        for number in range(8):
            answer = machine.begin(frontend, f"topic {number}", request=f"r{number}", max_tokens=5).answer()
            assert answer["usage"]["completion_tokens"] == 5
    shown = house.trust("one")
    assert (shown["mode"], shown["refused"]) == ("accept", 0)
    assert shown["proven"]
    assert shown["doubted"]


@together
def test_readers_of_blocks_sign(machine: Any) -> None:
    env = {"DYNAMOD_CLUSTER_SECRET_FILE": secret(machine), "DYNAMOD_TRUST": "require"}
    url = serve(machine, **env).ready()
    for number in range(3):
        machine.begin(url, f"{number} {LONG}", request=f"r{number}", max_tokens=4).answer()
    assert (handoffs(machine)["transfers"], handoffs(machine)["failed"]) == (3, 0)
    found = [
        metric(machine, machine.socket, f"dynamod_signing_{what}_total") for what in ("signed", "proven", "refused")
    ]
    assert found == [3, 3, 0], "one signature for each connection, and nothing else leaves a process"


@together
def test_a_secret_is_replaced_in_three_steps(machine: Any, servers: Servers) -> None:
    path = secret(machine)
    house = House(machine, servers, DYNAMOD_CLUSTER_SECRET_FILE=path, DYNAMOD_TRUST="require")
    house.join("two", "three")
    (old,) = house.trust("one")["digests"]
    assert machine.run("dynamo", "trust", "new", path).code == 0
    lines = [line for line in (machine.folder / "cluster.secret").read_text().splitlines() if line[0] != "#"]
    with streaming(house) as ended:
        for secrets in (lines, lines[::-1], lines[1:]):
            (machine.folder / "cluster.secret").write_text("\n".join(secrets))
            for node in NODES:
                done = house.dynamo(node, "trust", "reread")
                assert done.code == 0, done.err
            before = len(ended)
            machine.until(lambda before=before: len(ended) >= before + STREAMS, 60)
    (new,) = house.trust("one")["digests"]
    assert new != old
    assert set(ended) == {"length"}
    assert [house.trust(node)["refused"] for node in NODES] == [0, 0, 0]
    assert instances(machine, house.url) == ["three", "two"]


@together
def test_a_wrong_secret_is_one_line_and_nothing_starts(machine: Any) -> None:
    words = ("dynamo-run", "in=http", "out=echo_full", "--http-port", 0)
    short = machine.folder / "short"
    short.write_text("short")
    short.chmod(0o600)
    for env, why in (
        ({"DYNAMOD_CLUSTER_SECRET_FILE": str(short)}, "has a secret of 5 characters"),
        ({"DYNAMOD_CLUSTER_SECRET_FILE": "/nowhere"}, "does not exist"),
        ({"DYNAMOD_TRUST": "require"}, "DYNAMOD_TRUST=require needs a cluster secret"),
    ):
        done = machine.start(*words, **env).wait(20)
        assert done.code != 0
        last = done.err.splitlines()[-1]
        assert last.startswith("error: DYNAMOD_"), done.err
        assert why in last
    started = machine.start(*words)
    started.ready()
    assert "mode off" in machine.run("dynamo", "trust", "show").out
    refused = machine.run("dynamo", "trust", "set", "require")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "has no cluster secret" in refused.err
