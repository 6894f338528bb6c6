"""A daemon one of whose parts has failed for good ends, so that a service manager starts another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dynamod.actor import ActorError, System
from dynamod.control.socket import ControlSocket
from dynamod.daemon.node import Node
from dynamod.message.control import Ping


@asynccontextmanager
async def daemon(path: Path) -> AsyncIterator[tuple[System, Node]]:
    async with System() as system:
        node = Node(system, path / "d.sock", control=ControlSocket)
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
            while not node.stopped.is_set():
                await crash(system, path)
        assert node.code == 1


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
        assert (node.stopped.is_set(), node.code) == (False, 0)


@pytest.mark.parametrize("part", ["link", "control"])
async def test_the_watchdog_hears_of_a_part_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    async with daemon(tmp_path) as (_, node):
        await node._services.stop_child(part)
        with pytest.raises(ActorError):
            await node.context.ref.ask(Ping(), timeout=15)
