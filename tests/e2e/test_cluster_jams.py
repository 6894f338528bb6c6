"""Mailboxes and ways that are really full: everybody gets an answer in time, and nothing of it stays behind."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dynamod.message import tokens
from dynamod.message.ingress import Delta, Failed
from dynamod.message.worker import Generate, Stops
from dynamod.transport.base import Sink
from dynamod.transport.framing import MAGIC, Unframer, pack
from dynamod.transport.inbox import Inbox

from .asking import chat_body, request_of
from .nodes import Servers, fast, front, instances, worker

FLOOD: dict[str, Any] = {"model": "sample", "prompt": [[7]] * 2000, "max_tokens": 2, "ignore_eos": True}
"""2,000 small ones in one."""


def metric(machine: Any, path: Path, name: str) -> float:
    """Sum of a metric's samples at a daemon's control socket."""
    connection = machine.unix(socket_path=path)
    connection.request("GET", "/v1/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}\b", line))


def pid_of(machine: Any, path: Path, component: str) -> int:
    rows = machine.raw("GET", "/v1/ps", socket_path=path)[1]
    return next(int(row["pid"]) for row in rows if row["component"] == component)


def memory(pid: int) -> float:
    """MB that a process holds."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def state(process: Path) -> str:
    """What a process or thread of /proc does: `R`, `S`, `T` (stopped)."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing: kill() returns before its target stops, which may look at its sockets once more."""
    os.kill(pid, signal.SIGSTOP)
    try:
        within = time.monotonic() + 5
        while any(state(thread) != "T" for thread in Path(f"/proc/{pid}/task").iterdir()):
            assert time.monotonic() < within, f"process {pid} does not stop"
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def ask(url: str, body: dict[str, Any]) -> tuple[int, Any, str | None]:
    """Status, body, and when to come again."""
    connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=120)
    try:
        connection.request(*request_of("/v1/completions", body))
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers["Retry-After"]
    finally:
        connection.close()


def flood(
    machine: Any,
    url: str,
    pid: int,
    times: int = 1,
    *,
    before: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], object] = lambda: None,
    **fields: Any,
) -> list[tuple[int, Any, str | None]]:
    """Requests while a worker's process is stopped for a moment, so that they come to it all at once.

    `before` and `meanwhile` are called before they are sent, and when they have been.
    """
    body = {**FLOOD, **fields}

    def sent() -> float:
        text = machine.ask(url, "/metrics")[1]
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("dynamod_router_decisions"))

    until_now = sent()
    with ThreadPoolExecutor(times) as pool:
        with stopped(pid):
            before()
            asked = [pool.submit(ask, url, body) for _ in range(times)]
            machine.until(lambda: sent() >= until_now + times * len(body["prompt"]))
            for _ in range(5):  # the frontend decides first, and sends in the next turns of its event loop
                sent()
            meanwhile()
        return [one.result() for one in asked]


def calm(machine: Any, path: Path) -> bool:
    """Whether nothing is under way at a node, nor waits there."""
    workers = ("worker_open", "worker_engine_running", "outbox_waiting", "nats_queued", "actor_mailbox_depth")
    names = (*workers, "processor_flights", "router_active_requests")
    return not any(metric(machine, path, f"dynamod_{name}") for name in names)


class Neighbour(Sink):
    """Another ingress of the node: it sends a worker more requests at once than the 1,024 that its mailbox holds."""

    COUNT = 2000

    def __init__(self, path: Path) -> None:
        self.answered = self.refused = 0
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(20)
        self._sock.connect(str(path))
        self._unframer = Unframer()
        self._receive()  # the worker has accepted the connection once it sends anything

    def send(self) -> None:
        frames = [MAGIC]
        inbox = Inbox(lambda payload: frames.append(pack(payload)))
        for number in range(self.COUNT):
            request = Generate(str(number), "sample", tokens.pack((7,)), Stops(max_tokens=2, ignore_eos=True))
            inbox.open("test.backend.generate", request, self)
        self._inbox = inbox
        self._sock.sendall(b"".join(frames))

    def delta(self, delta: Delta) -> None:
        self.refused += isinstance(delta, Failed)
        self.answered += bool(getattr(delta, "finish", None))

    def lost(self, why: str) -> None:
        raise AssertionError(why)

    def read(self) -> None:
        """Until every request has its answer."""
        while self.answered + self.refused < self.COUNT:
            self._receive()
        self._sock.close()

    def _receive(self) -> None:
        data = self._sock.recv(65536)
        assert data, "the worker has closed the connection"
        for payload in self._unframer.feed(data):
            self._inbox.frame(payload)


@pytest.mark.parametrize("others", ["another takes them", "there is no other", "no other was asked for"])
def test_a_full_mailbox_refuses_what_it_cannot_hold(machine: Any, others: str) -> None:
    """The request goes elsewhere, or the client is told at once when to come again."""
    words = ("dynamo-run", "in=dyn://test", "out=mocker", "sample", "--extra-engine-args", fast(machine, 1000))
    second: list[Any] = []

    def more() -> None:
        second.append(machine.start(*words))
        second[-1].prints("ready")
        machine.until(lambda: len(instances(machine, url)) == 2)

    machine.start(*words, DYNAMOD_HEARTBEAT_TIMEOUT="20").prints("ready")
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0).ready()
    machine.until(lambda: machine.serves(url))
    row = machine.row("Worker")
    before = memory(row["pid"])
    assert machine.chat(url, "open the connection", max_tokens=1)
    [path] = machine.folder.rglob("*.Worker.0.sock")
    fields: dict[str, Any] = {"prompt": [[7]] * 8}
    if others == "no other was asked for":
        more()
        known = json.loads(machine.ask(url, "/health")[1])["instances"]
        [instance] = [one["instance_id"] for one in known if one["process"] == row["process"]]
        fields["nvext"] = {"backend_instance_id": instance}
    meanwhile = more if others == "another takes them" else lambda: None
    for _ in range(5):
        neighbour = Neighbour(path)
        full = metric(machine, machine.socket, "dynamod_system_full_total")
        begun = time.monotonic()
        [(status, body, retry)] = flood(machine, url, row["pid"], before=neighbour.send, meanwhile=meanwhile, **fields)
        took = time.monotonic() - begun
        neighbour.read()
        refused = metric(machine, machine.socket, "dynamod_system_full_total") - full - neighbour.refused
        if refused == 8:
            break
        assert (refused, status, len(body["choices"])) == (0, 200, 8)
        # The worker stopped when it was about to read the frontend's connection: then those eight come first. Or the
        # other one has started so slowly that they went there before this one went on.
        assert neighbour.answered in ((1024, 1024 - 8) if others == "another takes them" else (1024 - 8,))
        if others == "another takes them":
            second.pop().end()
            machine.until(lambda: len(instances(machine, url)) == 1)
    assert (neighbour.answered, refused) == (1024, 8)
    if others == "another takes them":
        assert (status, len(body["choices"])) == (200, 8)
        assert all(choice["finish_reason"] == "length" for choice in body["choices"])
    else:
        assert took < 15
        assert (status, body["error"]["code"]) == (503, "no_workers")
        assert "the mailbox of test.backend.generate is full" in body["error"]["message"]
        assert int(retry or 0) >= 1
    machine.until(lambda: calm(machine, machine.socket))
    assert memory(row["pid"]) < before + 100
    assert machine.chat(url, "and now", max_tokens=3)


@pytest.fixture(scope="module")
def cluster(shared: Any, shared_servers: Servers) -> tuple[str, dict[str, Path]]:
    """URL of the frontend on node one, with workers on two and three; and the nodes' control sockets."""
    _, url = front(shared, shared_servers)
    for node in ("two", "three"):
        kept = {"DYNAMOD_KILL_TIMEOUT": "60"}  # a stopped worker lives until a test lets it run again
        worker(shared, shared_servers, node, speed=4, env=kept)
    shared.until(lambda: instances(shared, url) == ["three", "two"])
    return url, {node: shared.folder / node / "d.sock" for node in ("one", "two", "three")}


def test_a_flood_at_a_node_that_stops_for_a_moment(shared: Any, cluster: tuple[str, dict[str, Path]]) -> None:
    url, paths = cluster
    fields = {"max_tokens": 900, "ignore_eos": True}
    streams = [shared.stream(url, f"topic {number}", **fields) for number in range(4)]
    found = flood(shared, url, pid_of(shared, paths["two"], "Worker"), 2)
    assert [(status, len(body["choices"])) for status, body, _ in found] == [(200, 2000)] * 2
    texts = [stream.read().text for stream in streams]
    assert texts == shared.chats(url, [f"topic {number}" for number in range(4)], **fields)
    shared.until(lambda: all(calm(shared, path) for path in paths.values()))


class Unread:
    """A client with a small window that asks for a stream and reads nothing for now."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._sock.settimeout(20)
        self._sock.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        data = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._sock.sendall(head.encode() + data)

    def read(self) -> tuple[list[str], int, bool]:
        """Now read all: texts by choice, the number of events with text, and whether it ended as it should."""
        response = http.client.HTTPResponse(self._sock)
        response.begin()
        assert response.status == 200
        events = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
        self._sock.close()
        texts: dict[int, str] = {}
        for event in events[:-1]:
            for choice in json.loads(event)["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
        return [texts[index] for index in sorted(texts)], len(events), events[-1] == "[DONE]"


def test_a_client_that_does_not_read_holds_up_nobody(shared: Any, cluster: tuple[str, dict[str, Path]]) -> None:
    """Its answer waits for it in the frontend, merged; the worker is done with it long before."""
    url, paths = cluster
    fields = {"n": 64, "max_tokens": 900, "ignore_eos": True}  # several times what the kernel takes for it
    before = memory(pid_of(shared, paths["one"], "Frontend"))
    client = Unread(url, chat_body("much", stream=True, **fields))
    shared.until(lambda: metric(shared, paths["one"], "dynamod_processor_flights") == 64)
    others = [shared.stream(url, f"other {number}", max_tokens=200) for number in range(4)]
    texts = [stream.read().text for stream in others]
    shared.until(lambda: all(calm(shared, path) for path in paths.values()))
    assert metric(shared, paths["one"], "dynamod_processor_flights") == 0
    assert memory(pid_of(shared, paths["one"], "Frontend")) < before + 50
    read, events, done = client.read()
    assert done
    assert events < 64 * 900 * 0.75, "the way to it was full, so its text came in larger pieces"
    status, answer = shared.ask(url, "/v1/chat/completions", chat_body("much", **fields))
    assert status == 200, answer
    assert read == [choice["message"]["content"] for choice in json.loads(answer)["choices"]]
    assert texts == shared.chats(url, [f"other {number}" for number in range(4)], max_tokens=200)


def test_a_front_door_that_stops_reading_for_a_moment(shared: Any, cluster: tuple[str, dict[str, Path]]) -> None:
    """The workers' windows are used up: what they make waits there, in one piece for each stream."""
    url, paths = cluster
    fields = {"max_tokens": 1900, "ignore_eos": True}  # they still make some when a busy machine has seen the windows
    streams = [shared.stream(url, f"window {number}", **fields) for number in range(4)]
    workers = (paths["two"], paths["three"])
    moved = metric(shared, paths["one"], "dynamo_frontend_model_migration_total")
    with stopped(pid_of(shared, paths["one"], "Frontend")):
        shared.until(lambda: all(metric(shared, path, "dynamod_outbox_credits") == 0 for path in workers), 1.5)
        made = sum(metric(shared, path, "dynamod_worker_engine_tokens_total") for path in workers)
        time.sleep(0.2)
        more = sum(metric(shared, path, "dynamod_worker_engine_tokens_total") for path in workers) - made
        waiting = sum(metric(shared, path, "dynamod_outbox_waiting") for path in workers)
        assert 0 < waiting <= 8 < more, "of each stream one piece, and at most one that has come just now"
    texts = [stream.read().text for stream in streams]
    assert [(stream.finish, stream.done, stream.error) for stream in streams] == [("length", True, None)] * 4
    assert texts == shared.chats(url, [f"window {number}" for number in range(4)], **fields)
    shared.until(lambda: all(calm(shared, path) for path in paths.values()))
    assert metric(shared, paths["one"], "dynamo_frontend_model_migration_total") == moved
