"""A daemon one of whose parts has failed for good ends, so that a service manager starts another one."""

import asyncio
import logging
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dynamod import __version__
from dynamod.actor import ActorError, System
from dynamod.control.socket import ControlSocket
from dynamod.daemon.lock import NodeLock
from dynamod.daemon.node import Node
from dynamod.message.control import Ping
from dynamod.message.node import Hello, Kind, Output, Welcome
from dynamod.message.protocol import PROTOCOL
from dynamod.runtime.attach import reach
from dynamod.runtime.paths import link_path
from dynamod.transport.channel import Channel


@asynccontextmanager
async def daemon(
    path: Path, *, ephemeral: bool = False, first: socket.socket | None = None
) -> AsyncIterator[tuple[System, Node]]:
    async with System() as system:
        node = Node(system, path / "d.sock", control=ControlSocket, ephemeral=ephemeral, first=first)
        ref = system.start("node", lambda: node, restart="temporary", shutdown=20)
        await system.ready(ref, timeout=30)
        system.watch(ref, node.part_ended)
        yield system, node
        await system.root.stop_child("node")


async def crash(system: System, path: str) -> None:
    cell = system.cell(system.ref(path))
    if cell is not None and cell.task is not None:
        cell.task.cancel()
    await asyncio.sleep(0.02)


@pytest.mark.parametrize("path", ["/services/link", "/services/control", "/node"])
async def test_a_part_that_fails_for_good_ends_the_daemon_with_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    async with daemon(tmp_path) as (system, node):
        async with asyncio.timeout(20):
            while not node.life.stopped.is_set():
                await crash(system, path)
        assert node.life.code == 1


async def test_a_part_that_fails_once_is_started_again_and_the_watchdog_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    async with daemon(tmp_path) as (system, node):
        assert await node.context.ref.ask(Ping(), timeout=5) == "pong"
        await crash(system, "/services/control")
        async with asyncio.timeout(10):
            while system.cell(system.ref("/services/control")) is None:  # noqa: ASYNC110 - a real process
                await asyncio.sleep(0.02)
        assert await node.context.ref.ask(Ping(), timeout=5) == "pong"
        assert (node.life.stopped.is_set(), node.life.code) == (False, 0)


@pytest.mark.parametrize("part", ["link", "control"])
async def test_the_watchdog_hears_of_a_part_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    async with daemon(tmp_path) as (_, node):
        await node.parts.services.stop_child(part)
        with pytest.raises(ActorError):
            await node.context.ref.ask(Ping(), timeout=15)


class File:
    """A process that connects to a node: a user's Python file, or a command (`kind="session"`)."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.closed = asyncio.Event()
        self.channel = Channel(self.heard.append, closed=self.closed.set)

    def greet(self, kind: Kind = "file") -> None:
        self.channel.send(Hello("file", os.getpid(), version=__version__, kind=kind, protocol=PROTOCOL))


async def test_a_daemon_that_ends_with_its_last_client_takes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was taken would be told to stop, as if somebody had said so; who is not asks the next daemon."""
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    async with asyncio.timeout(20), daemon(tmp_path, ephemeral=True) as (_, node):
        last, late = File(), File()
        for file in (last, late):
            await asyncio.get_running_loop().create_unix_connection(
                lambda file=file: file.channel, str(link_path(node.place.socket))
            )
        last.greet()
        while not last.heard:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        last.channel.close()
        await node.life.stopped.wait()
        late.greet()
        await late.closed.wait()
        assert late.heard == []


async def test_a_node_whose_daemon_is_about_to_end_gets_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first daemon that is started meanwhile finds the node held and ends."""
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    socket = tmp_path / "d.sock"
    lock = NodeLock(socket)
    assert lock.take()
    file = File()
    async with asyncio.timeout(20):
        coming = asyncio.create_task(reach(socket, lambda: file.channel, start=True))
        await asyncio.sleep(3)
        assert not coming.done()
        lock.leave()
        await coming
        file.greet()
        while not file.heard:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert isinstance(file.heard[0], Welcome)
        file.channel.close()
        while lock.holder():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_command_that_started_the_daemon_sees_lines_from_before_its_hello(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the `Hello` of the command arrives late; warnings of the start were lost on its terminal."""
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    above, below = socket.socketpair()
    command, other = File(), File()
    async with asyncio.timeout(20), daemon(tmp_path, ephemeral=True, first=above) as (_, node):
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: command.channel, sock=below)
        await loop.create_unix_connection(lambda: other.channel, str(link_path(node.place.socket)))
        logging.getLogger("dynamod.daemon").warning("the first line")
        other.greet("session")
        while not other.heard:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        logging.getLogger("dynamod.daemon").warning("the second line")
        command.greet("session")
        logging.getLogger("dynamod.daemon").warning("the third line")

        def lines(one: File) -> list[str]:
            found = " ".join(bytes(said.line).decode() for said in one.heard if isinstance(said, Output))
            return re.findall(r"the (\w+) line", found)

        while len(lines(command)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert lines(command) == ["first", "second", "third"]
        assert lines(other) == ["second", "third"]
        command.channel.close()
        other.channel.close()
