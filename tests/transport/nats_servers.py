"""A real nats-server, and offices and posts over it. Not a test: the tests over NATS share it."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta, Failed, Items, Tokens
from dynamod.message.worker import Call, Generate, Request
from dynamod.transport.base import Outbound, Receive, Reply, Sink
from dynamod.transport.nats.connection import NatsConnection
from dynamod.transport.nats.settings import NatsSettings
from dynamod.transport.nats.transport import NatsServer, NatsTransport, instance_subject
from tests.ports import free_port

QUICK = {"alive": 0.2, "silence": 0.8, "patience": 0.3}
"""Clocks of tests that wait for them."""

WORKER = """
import asyncio, sys
from dynamod.transport.nats.connection import NatsConnection
from dynamod.transport.nats.transport import NatsServer
from dynamod.transport.nats.settings import NatsSettings

async def main():
    tasks = set()
    spawn = lambda work, name: tasks.add(asyncio.get_running_loop().create_task(work))
    connection = NatsConnection(NatsSettings(servers=(sys.argv[1],), alive=0.2, silence=0.8), spawn)
    connection.start()
    office = NatsServer(connection, sys.argv[2], lambda endpoint, request, reply: reply.accepted())
    await office.start()
    assert await connection.ready(10)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
"""A worker process that accepts every request and says nothing more."""

INGRESS = """
import asyncio, sys
from dynamod.message.discovery import Instance
from dynamod.message.worker import Call
from dynamod.transport.base import Sink
from dynamod.transport.nats.connection import NatsConnection
from dynamod.transport.nats.transport import NatsTransport
from dynamod.transport.nats.settings import NatsSettings

class Quiet(Sink):
    def delta(self, delta): print("delta", flush=True)
    def lost(self, why): print("lost", why, flush=True)

async def main():
    tasks = set()
    spawn = lambda work, name: tasks.add(asyncio.get_running_loop().create_task(work))
    connection = NatsConnection(NatsSettings(servers=(sys.argv[1],), alive=0.2, silence=0.8), spawn)
    connection.start()
    assert await connection.ready(10)
    transport = NatsTransport(connection)
    for _ in range(3):
        transport.open(Instance("d", "b", "g", 1, {"nats": sys.argv[2]}), Call("x"), Quiet())
    await asyncio.sleep(60)

asyncio.run(main())
"""
"""An ingress process with three open streams."""


class Server:
    """A nats-server that can be stopped, frozen and started again on its port."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._log = folder / f"nats-{self.port}.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        beside = Path(sys.executable).parent / "nats-server"
        binary = str(beside) if beside.exists() else shutil.which("nats-server")
        if binary is None:
            pytest.skip("no nats-server: install the extra infra")
        command = [binary, "-a", "127.0.0.1", "-p", str(self.port), *self._arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(self._log.read_text())

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # one of its threads is told, and must run

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    server = Server(folder, *arguments)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process of its own; killed at the end."""
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, env=dict(os.environ))
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


class Collector(Sink):
    """A reader."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.why: str | None = None
        self.done = asyncio.Event()
        self.lost_at = 0.0

    def delta(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if isinstance(delta, Failed) or getattr(delta, "finish", None) is not None:
            self.done.set()

    def lost(self, why: str) -> None:
        assert self.why is None, "lost is told once"
        self.why = why
        self.lost_at = asyncio.get_running_loop().time()
        self.done.set()

    async def wait(self, timeout: float = 10) -> Self:
        async with asyncio.timeout(timeout):
            await self.done.wait()
        return self

    @property
    def ids(self) -> list[int]:
        return [i for delta in self.deltas if isinstance(delta, Tokens) for i in tokens.unpack(delta.ids)]

    @property
    def items(self) -> list[Any]:
        return [item for delta in self.deltas if isinstance(delta, Items) for item in delta.items]


class House:
    """A worker's office and an ingress's post, each with its own connection, over one server."""

    def __init__(self, url: str, receive: Receive, **settings: Any) -> None:
        self.settings = NatsSettings(servers=(url,), **settings)
        self.tasks: list[asyncio.Task[None]] = []
        self.worker = NatsConnection(self.settings, self.spawn, "worker")
        self.ingress = NatsConnection(self.settings, self.spawn, "ingress")
        self.subject = instance_subject("dynamo", "backend", "generate", 0xABC)
        self.server = NatsServer(self.worker, self.subject, receive)
        self.transport = NatsTransport(self.ingress)
        self.instance = Instance("dynamo", "backend", "generate", 0xABC, {"nats": self.subject})

    def spawn(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def __aenter__(self) -> Self:
        self.worker.start()
        self.ingress.start()
        await self.server.start()
        assert await self.worker.ready(10)
        assert await self.ingress.ready(10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()
        await self.server.close()
        await self.ingress.close()
        await self.worker.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*self.tasks)

    def open(self, request: Request | None = None) -> tuple[Collector, Outbound]:
        sink = Collector()
        return sink, self.transport.open(self.instance, request or Call("x"), sink)

    async def ask(self, ids: range | list[int]) -> Collector:
        """A whole request to `echo`."""
        sink, _ = self.open(Generate("x", "m", tokens.pack(ids)))
        return await sink.wait()


def echo(endpoint: str, request: Request, reply: Reply) -> None:
    """An engine that gives the prompt back, id by id."""
    assert endpoint == "dynamo.backend.generate"
    assert isinstance(request, Generate)
    reply.accepted()
    ids = tokens.unpack(request.token_ids)
    for position, token in enumerate(ids):
        reply.tokens(tokens.pack([token]), 1, "stop" if position == len(ids) - 1 else None)


async def until(true: Callable[[], object], timeout: float = 10) -> None:
    async with asyncio.timeout(timeout):
        while not true():  # noqa: ASYNC110 - there is no event for what tests look at
            await asyncio.sleep(0.01)
