"""Connections of processes to the daemon, over real sockets."""

import asyncio
import functools
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from dynamod import __version__
from dynamod.actor import System
from dynamod.daemon.link import LinkServer
from dynamod.discovery.keys import exited_key, quarantine_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.node import Hello, Kind
from dynamod.message.protocol import PROTOCOL
from dynamod.runtime.liveness import Clocks
from dynamod.transport.channel import Channel


@pytest.mark.parametrize(("kind", "judged"), [("component", True), ("file", False)])
async def test_a_process_that_hangs_before_its_first_heartbeat(tmp_path: Path, kind: Kind, judged: bool) -> None:
    """A component was started by the daemon and is judged at once; a file may load a model before it serves."""
    registry = MemoryRegistry(random.Random(1))
    async with System() as system:
        server = LinkServer(tmp_path / "link", registry, "here")
        await system.ready(system.start("link", lambda: server, restart="temporary"), timeout=5)
        above, below = socket.socketpair()
        connection = await server.adopt(above, "agg/Worker.0", Clocks(heartbeat=0.1))
        heard: list[Any] = []
        channel = Channel(heard.append)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=below)
        # Process id 0: this process, which runs the test, works, and a process that works is not stuck.
        channel.send(Hello("agg/Worker.0", 0, version=__version__, kind=kind, protocol=PROTOCOL))
        async with asyncio.timeout(5):
            while not heard:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.5)
        assert bool(connection.why) == judged
        assert (registry.own(quarantine_key(connection.lease)) is not None) == judged
        channel.close()
        async with asyncio.timeout(5):
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert registry.own(quarantine_key(connection.lease)) is None, "who is gone is not unresponsive"


async def test_a_file_that_comes_back_under_its_lease_has_not_ended(tmp_path: Path) -> None:
    registry = MemoryRegistry(random.Random(1))
    async with System() as system:
        server = LinkServer(tmp_path / "link", registry, "here")
        await system.ready(system.start("link", lambda: server, restart="temporary"), timeout=5)
        lease = 0
        for _ in range(2):
            messages: list[Any] = []
            channel = Channel(messages.append)
            made = functools.partial(lambda channel: channel, channel)
            await asyncio.get_running_loop().create_unix_connection(made, str(tmp_path / "link"))
            channel.send(Hello("file", os.getpid(), version=__version__, kind="file", lease=lease, protocol=PROTOCOL))
            async with asyncio.timeout(5):
                while not messages:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                lease = next(iter(server.leases().values()))
                assert registry.own(exited_key(lease)) is None
                channel.close()
                while registry.own(exited_key(lease)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
