"""What an ingress process knows of adapters outlives it, and others know it too."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from dynamod.features.lora.changes import ADAPTERS, AdapterChange, AdapterChanges, AdapterRecord, adapters_key
from dynamod.features.lora.shared import SharedAdapters
from dynamod.message.discovery import Adapter
from dynamod.message.errors import DynamodError


def record(*names: str, at: float = 1.0) -> AdapterRecord:
    return AdapterRecord(tuple(AdapterChange("m", Adapter(name, f"/{name}"), at) for name in names))


class Daemon:
    """The registry of a node and what it keeps for processes; away while `away`."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.memos: dict[str, Any] = {}
        self.asked, self.away = 0, False


class Process:
    """An ingress process of that node: its link, and what it knows."""

    def __init__(self, daemon: Daemon, lease: int) -> None:
        self.daemon, self.lease = daemon, lease
        self.changes = AdapterChanges()
        self.tasks: list[asyncio.Task[Any]] = []
        self.shared = SharedAdapters(self, self.changes, "Processor")  # type: ignore[arg-type]

    def put(self, key: str, value: bytes) -> None:
        self.daemon.keys[key] = value

    def watch(self, prefix: str, watcher: Any) -> None:
        assert prefix == ADAPTERS
        for key, value in self.daemon.keys.items():
            watcher(key, value)

    async def ask(self, command: str, arguments: dict[str, Any], timeout: float) -> Any:
        assert command == "keep"
        if self.daemon.away:
            raise DynamodError("the daemon is away")
        if "memo" in arguments:
            self.daemon.asked += 1
            self.daemon.memos[arguments["component"]] = arguments["memo"]
        return self.daemon.memos.get(arguments["component"])

    def _spawn(self, work: Coroutine[Any, Any, Any], _name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def join(self) -> "Process":
        await self.shared.join(self._spawn)
        await asyncio.gather(*self.tasks)
        return self

    def published(self) -> AdapterRecord:
        return msgspec.json.decode(self.daemon.keys[adapters_key(self.lease)], type=AdapterRecord)


async def test_the_next_process_knows_it_from_the_daemon() -> None:
    daemon = Daemon()
    first = await Process(daemon, 1).join()
    assert (daemon.keys, daemon.asked) == ({}, 0), "there is nothing to say"
    first.changes.merge(record("x", "y"))
    assert first.published() == record("x", "y")
    await first.shared.keep()
    await asyncio.gather(*first.tasks)
    assert daemon.asked == 1, "nothing is said twice"
    daemon.keys.clear()
    second = await Process(daemon, 2).join()
    assert second.changes.all() == second.published() == record("x", "y")


async def test_what_others_know_is_published_again_and_kept() -> None:
    daemon = Daemon()
    daemon.keys[adapters_key(7)] = msgspec.json.encode(record("x"))
    daemon.memos["Processor"] = msgspec.to_builtins(record("y"))
    process = await Process(daemon, 1).join()
    assert process.published() == record("x", "y")
    assert daemon.memos["Processor"] == msgspec.to_builtins(record("x", "y"))


async def test_without_an_answer_of_the_daemon_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    daemon = Daemon()
    daemon.away = True
    process = await Process(daemon, 1).join()
    assert "the daemon does not say which adapters were loaded: the daemon is away" in caplog.text
    process.changes.merge(record("x"))
    await process.shared.keep()
    assert "the daemon does not keep which adapters are loaded: the daemon is away" in caplog.text
    daemon.away = False
    await process.shared.keep()
    assert daemon.memos["Processor"] == msgspec.to_builtins(record("x"))
    await asyncio.gather(*process.tasks)
