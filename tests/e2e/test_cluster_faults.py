"""Servers and ways between nodes that fail, under streams."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .nodes import Servers, fast, front, instances, long_model, models, on, worker
from .together import together
from .ways import Way


@together
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


@together
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


@together
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


@together
def test_nats_restarts_under_streams(machine: Any, servers: Servers) -> None:
    """With another worker to go to, or a quick restart, no text is lost."""
    _, url = front(machine, servers)
    for node in ("one", "two"):
        worker(machine, servers, node)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    fields = {"max_tokens": 400, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(2)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    servers.kill("nats-server")
    servers.up()
    assert [stream.read().text for stream in streams] == whole


@together
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


@together
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


@together
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


@contextmanager
def open_ways() -> Iterator[list[Way]]:
    made: list[Way] = []
    try:
        yield made
    finally:
        for way in made:
            way.close()


@pytest.fixture
def ways() -> Iterator[list[Way]]:
    with open_ways() as made:
        yield made


def through(ways: list[Way], url: str) -> tuple[Way, str]:
    """A way to a server, and the server's URL by it."""
    head, _, port = url.rpartition(":")
    ways.append(Way(int(port)))
    return ways[-1], f"{head}:{ways[-1].port}"


@together
def test_the_lease_is_lost_and_the_mail_is_not(machine: Any, servers: Servers) -> None:
    """A node that etcd does not hear leaves the list, its streams go on; it comes back under the same id."""
    with open_ways() as ways:
        _, url = front(machine, servers)
        way, endpoint = through(ways, servers.env["ETCD_ENDPOINTS"])
        worker(machine, servers, "two", env={"ETCD_ENDPOINTS": endpoint, "ETCD_LEASE_TTL": "2"})
        machine.until(lambda: models(machine, url) == ["sample"])
        before = json.loads(machine.ask(url, "/health")[1])["instances"][0]["instance_id"]
        stream = machine.stream(url, "hello", max_tokens=900, ignore_eos=True)
        way.cut()
        machine.until(lambda: models(machine, url) == [], 15)
        stream.more(20)
        way.heal()
        machine.until(lambda: models(machine, url) == ["sample"])
        assert json.loads(machine.ask(url, "/health")[1])["instances"][0]["instance_id"] == before
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)


@pytest.mark.slow
def test_the_mail_is_lost_and_the_lease_is_not(machine: Any, servers: Servers, ways: list[Way]) -> None:
    _, url = front(machine, servers)
    way, server = through(ways, servers.env["NATS_SERVER"])
    worker(machine, servers, "two", env={"NATS_SERVER": server})
    worker(machine, servers, "three")
    machine.until(lambda: instances(machine, url) == ["three", "two"])
    fields = {"max_tokens": 600, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(2)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    way.cut()
    begun = time.monotonic()
    assert [stream.read().text for stream in streams] == whole
    assert time.monotonic() - begun < 20
    assert machine.chat(url, "who is there", max_tokens=3)
    way.heal()
    for number in range(4):
        assert machine.chat(url, f"and now {number}", max_tokens=3)


@pytest.mark.slow
def test_the_daemon_of_a_node_is_killed(machine: Any, servers: Servers) -> None:
    """Its processes end within 5 s, as on one node; other nodes go on at once."""
    _, url = front(machine, servers)
    two = worker(machine, servers, "two", env={"ETCD_LEASE_TTL": "3"})
    worker(machine, servers, "three")
    machine.until(lambda: instances(machine, url) == ["three", "two"])
    fields = {"max_tokens": 600, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(2)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    two.send(signal.SIGKILL)
    assert [stream.read().text for stream in streams] == whole
    two.gone(6)
    machine.until(lambda: instances(machine, url) == ["three"], 15)


@together
def test_status_tells_of_the_cluster(machine: Any, servers: Servers) -> None:
    front(machine, servers)
    env = on(machine, servers, "one")
    told = machine.run("dynamo", "status", "--output", "json", **env).json["cluster"]
    assert (told["connected"], told["error"]) == (True, "")
    assert told["etcd"] == servers.env["ETCD_ENDPOINTS"]
    assert (
        f"cluster: etcd {told['etcd']}, NATS {servers.env['NATS_SERVER']}" in machine.run("dynamo", "status", **env).out
    )
    servers.kill("etcd")
    machine.until(lambda: "not there" in machine.run("dynamo", "status", **env).out)
    lost = machine.run("dynamo", "status", **env)
    assert lost.code == 1
    assert f"problem: etcd at {told['etcd']} cannot be reached: " in lost.out
    doctor = machine.run("dynamo", "doctor", "--port", machine.port(), DYNAMOD_SOCKET=env["DYNAMOD_SOCKET"])
    assert f"FAIL health: etcd at {told['etcd']} cannot be reached" in doctor.out, "the daemon's cluster, not our own"
    assert "is alone" not in doctor.out
    assert f"ok   nats: {servers.env['NATS_SERVER']} answered" in doctor.out
    connection = machine.unix(socket_path=machine.folder / "one/d.sock")
    connection.request("GET", "/v1/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    assert 'dynamod_nats_connected{process="run-frontend/ingress.0"} 1' in text
