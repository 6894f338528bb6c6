"""KV events between processes that come doubled, swapped, damaged, forged or not at all.

No answer may change, the fault must be noticed, and what the router knows of the caches is right afterwards.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from .meddler import Doubling, Meddler, Once, Swapping, TransportSelector, UnixMeddler
from .nodes import Servers, fast, front, instances, worker

FIELDS = {"max_tokens": 160, "ignore_eos": True}
BLOCK = 16
LOST = r"the connection lost frames \(\d+ messages? missing\); \d+ streams are lost"


@dataclass
class House:
    """A frontend that routes by caches, and two mockers; the mail of one of them goes by `way`."""

    machine: Any
    way: Meddler
    url: str
    door: Any
    sockets: list[Path]
    """Control sockets of the frontend's daemon and of the workers'."""

    topics: Iterator[int] = field(default_factory=count)

    def metric(self, name: str, socket: Path | None = None) -> float:
        """Sum of a metric's samples, as the frontend shows it or a daemon."""
        if socket is None:
            text = self.machine.ask(self.url, "/metrics")[1]
        else:
            connection = self.machine.unix(socket_path=socket)
            connection.request("GET", "/v1/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}\b", line))

    def held(self) -> float:
        """Blocks that the workers' caches hold, as they say."""
        return sum(self.metric("dynamod_worker_engine_cached_blocks", socket) for socket in self.sockets[1:])

    def used(self) -> float:
        return sum(self.metric("dynamod_worker_engine_active_blocks", socket) for socket in self.sockets[1:])

    def decision(self, request: str) -> dict[str, Any]:
        """The last decision for a request."""
        status, records = self.machine.raw("GET", f"/v1/requests/{request}/decision", socket_path=self.sockets[0])
        assert status == 200, records
        last: dict[str, Any] = records[-1]
        return last

    def noticed(self, pattern: str) -> Callable[[], bool]:
        """Whether the frontend says so from now on."""
        before = len(self.door.err)
        return lambda: re.search(pattern, self.door.err[before:]) is not None

    def suffers(self, fault: Any) -> None:
        """Streams answer under the fault what they answer without; then the router knows the caches as they are."""
        machine = self.machine
        texts = [f"topic {next(self.topics)} " * 12 for _ in range(6)]
        self.way.fault = fault
        streams = [machine.stream(self.url, text, **FIELDS) for text in texts]
        for stream in streams:
            stream.read()
        self.way.fault = None
        assert [(stream.finish, stream.done, stream.error) for stream in streams] == [("length", True, None)] * 6
        assert fault.made, "the fault has not been made"
        assert [stream.text for stream in streams] == machine.chats(self.url, texts, **FIELDS)
        machine.until(lambda: self.used() == 0 and self.metric("dynamod_router_indexed_blocks") == self.held() > 0, 10)
        for text in texts:
            name = f"again-{text[:8]}".replace(" ", "-")
            machine.begin(self.url, text, request=name, max_tokens=1).answer()
            last = self.decision(name)
            [home] = [one for one in last["candidates"] if one["instance"] == last["chosen"]]
            assert home["overlap"] == last["tokens"] // BLOCK > 0, "it goes to a worker that has all of it"


@pytest.fixture(scope="module")
def cluster(shared: Any, shared_servers: Servers) -> Iterator[House]:
    """Three nodes; what node two and NATS say to each other goes by the way."""
    way = Meddler(shared_servers.ports["nats_port"])
    try:
        door, url = front(shared, shared_servers, "--router-mode", "kv")
        worker(shared, shared_servers, "two", speed=4, env={"NATS_SERVER": f"nats://127.0.0.1:{way.port}"})
        worker(shared, shared_servers, "three", speed=4)
        shared.until(lambda: instances(shared, url) == ["three", "two"])
        yield House(shared, way, url, door, [shared.folder / node / "d.sock" for node in ("one", "two", "three")])
    finally:
        way.close()


def test_doubled_mail_changes_nothing_and_is_counted(cluster: House) -> None:
    moved = cluster.metric("dynamo_frontend_model_migration_total")
    cluster.suffers(Doubling())
    assert cluster.metric("dynamo_frontend_model_migration_total") == moved, "nothing had to move"
    for socket in cluster.sockets[:2]:
        assert cluster.metric("dynamod_link_doubled_total", socket) > 10, "both ends have dropped what they had"
    assert cluster.metric("dynamod_link_doubled_total", cluster.sockets[2]) == 0


def news(mail: TransportSelector) -> bool:
    return mail.feed is not None


def for_a_worker(mail: TransportSelector) -> bool:
    return not mail.subject.startswith(b"_INBOX.")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda: Once(news, lambda _: []), LOST),
        (lambda: Swapping(news), LOST),
        (lambda: Once(news, lambda mail: [mail.damaged()]), "corrupt frame: .* streams are lost"),
        (lambda: Once(news, lambda mail: [mail, mail.forged(9, 50)]), LOST),
        (lambda: Once(for_a_worker, lambda _: []), "lost frames .* streams are lost"),
    ],
    ids=["lost", "swapped", "damaged", "forged", "lost on its way to the worker"],
)
def test_what_is_wrong_with_events_is_noticed_and_costs_no_answer(
    cluster: House, fault: Callable[[], Any], says: str
) -> None:
    moved = cluster.metric("dynamo_frontend_model_migration_total")
    noticed = cluster.noticed(says)
    cluster.suffers(fault())
    cluster.machine.until(noticed, 5)
    assert cluster.metric("dynamo_frontend_model_migration_total") > moved
    assert cluster.metric("dynamo_frontend_model_migration_duration_seconds_count{[^}]*failure") == 0


def test_forged_news_under_an_old_number_is_not_believed(cluster: House) -> None:
    """It cannot be told from a doubled message."""
    doubled = cluster.metric("dynamod_link_doubled_total", cluster.sockets[0])
    cluster.suffers(Once(news, lambda mail: [mail, mail.forged(-1, 50)]))
    assert cluster.metric("dynamod_link_doubled_total", cluster.sockets[0]) == doubled + 1


@pytest.fixture
def node(machine: Any) -> Iterator[House]:
    """One node without a broker; the mail of the first of its workers goes by the way."""
    words = ("dynamo-run", "in=dyn://test", "out=mocker", "sample", "--extra-engine-args", fast(machine, 4))
    machine.start(*words).prints("ready")
    [path] = machine.folder.glob("d.sock.d/*/*Worker*.sock")
    way = UnixMeddler(path)
    try:
        machine.start(*words).prints("ready")
        door = machine.start("dynamo-run", "in=http", "out=auto", "--router-mode", "kv", "--http-port", 0)
        url = door.ready()
        machine.until(lambda: len(instances(machine, url)) == 2)
        yield House(machine, way, url, door, [machine.socket, machine.socket])
    finally:
        way.close()


def test_events_inside_a_node_come_twice_or_not_at_all(node: House) -> None:
    """No socket does that to its bytes; what reads them does not rely on it."""
    node.suffers(Doubling())
    noticed = node.noticed("events of a worker were lost, subscribing again: ")
    node.suffers(Once(lambda mail: news(mail) and mail.goes_on, lambda _: []))
    assert noticed()
