"""NATS with three servers of which one stops to forward: no stream ends, whoever used it."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.transport.nats_servers import Server

from .nodes import Servers, front, instances, models, worker
from .together import together
from .ways import Way

STREAMS, TOKENS = 6, 800


class Trio:
    """Three nats-servers as one cluster, each behind a way that can be cut; and the etcd of `servers`."""

    def __init__(self, folder: Path, servers: Servers) -> None:
        routes, self._pages = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        around = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        cluster = ("--cluster_name", "trio", "--no_advertise", "--routes", around)
        self.servers = [
            Server(folder, *cluster, "--cluster", f"nats://127.0.0.1:{route}", "-m", str(page))
            for route, page in zip(routes, self._pages, strict=True)
        ]
        self.ways: list[Way] = []
        self._etcd = servers.env

    def start(self) -> None:
        for server in self.servers:
            server.start()
            self.ways.append(Way(server.port))

    def close(self) -> None:
        for way in self.ways:
            way.close()
        for server in self.servers:
            server.stop()

    @property
    def env(self) -> dict[str, str]:
        return {**self._etcd, "NATS_SERVER": ",".join(f"nats://127.0.0.1:{way.port}" for way in self.ways)}

    def names(self, number: int) -> list[str]:
        """Who is connected to a server."""
        page = f"http://127.0.0.1:{self._pages[number]}/connz"
        with urllib.request.urlopen(page, timeout=5) as answer:
            return [one.get("name", "") for one in json.load(answer)["connections"]]

    def joined(self, number: int) -> bool:
        page = f"http://127.0.0.1:{self._pages[number]}/routez"
        with urllib.request.urlopen(page, timeout=5) as answer:
            return len({route["remote_id"] for route in json.load(answer)["routes"]}) == 2

    def with_name(self, name: str) -> int:
        """The server that a process uses."""
        return next(number for number in range(3) if any(name in one for one in self.names(number)))


@contextmanager
def trio(machine: Any, servers: Servers) -> Iterator[Trio]:
    three = Trio(Path(machine.folder), servers)
    try:
        three.start()
        machine.until(lambda: all(map(three.joined, range(3))))
        yield three
    finally:
        three.close()


def streams(machine: Any, url: str) -> list[Any]:
    return [machine.stream(url, f"stream {n}", max_tokens=TOKENS, ignore_eos=True, seed=n) for n in range(STREAMS)]


@pytest.mark.parametrize(
    ("who", "how"), [("run-frontend", "frozen"), ("run-frontend", "unplugged"), ("run-mocker", "frozen")]
)
@together
def test_a_server_that_forwards_nothing_ends_no_stream(machine: Any, servers: Servers, who: str, how: str) -> None:
    with trio(machine, servers) as three:
        _, url = front(machine, three)
        for node in ("two", "three"):
            worker(machine, three, node)
        machine.until(lambda: models(machine, url) == ["sample"])
        whole = [stream.read().text for stream in streams(machine, url)]
        running, number = streams(machine, url), three.with_name(who)
        three.servers[number].freeze() if how == "frozen" else three.ways[number].cut()
        try:
            for stream, text in zip(running, whole, strict=True):
                assert stream.read().text == text
                assert (stream.finish, stream.done) == ("length", True)
            assert all(machine.chat(url, "hello", max_tokens=3) for _ in range(20))
        finally:
            three.servers[number].thaw() if how == "frozen" else three.ways[number].heal()


def test_streams_of_a_node_behind_a_cut_way_move_once(machine: Any, servers: Servers) -> None:
    """Its other worker is as far away, which would show after another 5 s."""
    way = Way(servers.ports["nats_port"])
    try:
        _, url = front(machine, servers)
        for _ in range(3):
            worker(machine, servers, "two", env={"NATS_SERVER": f"nats://127.0.0.1:{way.port}"})
        worker(machine, servers, "three")
        machine.until(lambda: instances(machine, url) == ["three", "two", "two", "two"])
        whole = [stream.read().text for stream in streams(machine, url)]
        before, running = moves(machine, url), streams(machine, url)
        way.cut()
        for stream, text in zip(running, whole, strict=True):
            assert stream.read().text == text
            assert (stream.finish, stream.done) == ("length", True)
        assert 1 <= moves(machine, url) - before <= STREAMS, "none has met a second worker of that node"
    finally:
        way.close()


def moves(machine: Any, url: str) -> float:
    """How often requests have moved to another worker."""
    lines = machine.ask(url, "/metrics")[1].splitlines()
    return sum(float(one.split()[-1]) for one in lines if one.startswith("dynamo_frontend_model_migration_total{"))
