"""What a feature keeps in each daemon, and what it asks of all nodes: a toy that counts commands and locks doors."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dynamod.actor import System
from dynamod.cli.options import Form
from dynamod.control.commands import Commands
from dynamod.control.socket import ControlSocket
from dynamod.daemon.membership import Membership
from dynamod.daemon.names import node_key
from dynamod.daemon.node import Node
from dynamod.daemon.parts import DaemonPart
from dynamod.discovery.memory import MemoryRegistry
from dynamod.extension import installed
from dynamod.extension.command import CommandCall, Proceed
from dynamod.extension.feature import Feature
from dynamod.message.discovery import NodeRecord
from dynamod.message.errors import UserError


class Doors(DaemonPart):
    """Counts commands by sender; `ps` of a stranger is refused."""

    setting = "open"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        if self.setting == "ajar":
            raise UserError("doors are 'ajar'", "open or closed")
        self.seen: list[tuple[str, str]] = []

    async def command(self, call: CommandCall, proceed: Proceed) -> Any:
        self.seen.append((call.sender, call.command.name))
        if call.sender == "stranger":
            raise UserError("the door is closed")
        return await proceed(call.named(call.name.removeprefix("the ")))

    def refused(self, call: CommandCall, status: int, message: str) -> None:
        self.seen.append((str(status), call.command.name))


class Section(msgspec.Struct):
    colour: str = "grey"


TOY = Feature("doors", "", daemon=lambda: Doors, everywhere={"ps": lambda: lambda _socket, _form: 7})


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed", lambda: {"doors": TOY})
    monkeypatch.setattr("dynamod.control.commands.installed", lambda: {"doors": TOY})
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)


@asynccontextmanager
async def daemon(path: Path) -> AsyncIterator[tuple[System, Node]]:
    async with System() as system:
        node = Node(system, path / "d.sock", control=ControlSocket)
        ref = system.start("node", lambda: node, restart="temporary", shutdown=20)
        try:
            await system.ready(ref, timeout=30)
            yield system, node
        finally:
            await system.root.stop_child("node")


def doors(node: Node) -> Doors:
    return cast("Doors", node.parts.of_features["doors"])


async def comes(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110 - a real daemon
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("toy")
async def test_commands_pass_the_part_of_a_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(tmp_path) as (system, node):
        commands = Commands(node, node.parts.around)
        assert await commands.call("ps", {}) == []
        with pytest.raises(UserError, match="the door is closed"):
            await commands.call("ps", {}, "stranger")
        with pytest.raises(UserError, match="no graph 'agg'"):
            await commands.call("stop", {"graph": "the agg"})
        assert doors(node).seen == [("", "ps"), ("stranger", "ps"), ("", "stop")]
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "d.sock"))
        writer.write(b"GET /v1/ps HTTP/1.0\r\n\r\n")
        assert json.loads((await reader.read()).rpartition(b"\r\n\r\n")[2]) == []
        writer.close()
        assert doors(node).seen[-1] == ("", "ps"), "those of the control socket too"
        with monkeypatch.context() as patched:
            patched.setattr("dynamod.control.server.Control._may_change", lambda *_: False)
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "d.sock"))
            writer.write(b"POST /v1/stop/agg HTTP/1.0\r\n\r\n")
            assert b" 403 " in await reader.readline()
            writer.close()
        assert doors(node).seen[-1] == ("403", "stop"), "a client who may not change anything"
        before = doors(node)
        cell = system.cell(system.ref("/features/doors"))
        assert cell is not None
        assert cell.task is not None
        cell.task.cancel()
        await comes(lambda: doors(node) is not before)
        assert not node.life.stopped.is_set(), "the daemon works without it meanwhile"
        assert await commands.call("ps", {}) == []


@pytest.mark.usefixtures("toy")
async def test_a_wrong_setting_of_a_part_is_an_error_of_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Doors, "setting", "ajar")
    async with System() as system:
        node = Node(system, tmp_path / "d.sock", control=ControlSocket)
        ref = system.start("node", lambda: node, restart="temporary", shutdown=20)
        reason = await system.ended(ref)
        error = getattr(reason, "error", None)
        assert isinstance(error, UserError)
        assert error.line() == "doors are 'ajar'; open or closed"


@pytest.mark.usefixtures("toy")
async def test_a_part_that_is_off_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-doors")
    async with daemon(tmp_path) as (_, node):
        assert node.parts.of_features == {}
        assert await Commands(node, node.parts.around).call("ps", {}) == []


@pytest.mark.usefixtures("toy")
def test_what_all_nodes_are_asked_is_of_the_feature_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.everywhere("ps")(None, Form.TEXT) == 7
    with pytest.raises(UserError, match="`dynamo status --all` needs a feature that asks all nodes, and none"):
        installed.everywhere("status")
    monkeypatch.setenv("DYNAMOD_FEATURES", "-doors")
    with pytest.raises(UserError, match="`dynamo ps --all` belongs to the feature 'doors', which is off"):
        installed.everywhere("ps")


def test_a_feature_says_something_of_its_daemon() -> None:
    """In the record of the node; what a section of another release says is skipped."""
    membership = Membership(registry := MemoryRegistry(random.Random(1)))
    lease = registry.grant()
    membership.say("doors", Section("red"))
    assert registry.items() == [], "a node alone publishes nothing"
    membership._place = key, _ = node_key("one", lease), lease
    membership.say("doors", Section("blue"))
    record = msgspec.json.decode(registry.items(key)[0][1], type=NodeRecord)
    assert record.section("doors", Section).colour == "blue"
    assert record.protocol >= record.since > 0
    for said in ({}, {"doors": {"colour": 7}}, {"doors": "red"}, {"doors": {"size": 1}}):
        assert NodeRecord(sections=said).section("doors", Section).colour == "grey"
