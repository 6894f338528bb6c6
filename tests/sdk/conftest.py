"""A node of its own for tests that run workers in this process."""

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dynamod.sdk import connection as connection_module


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the node's sockets; afterwards nothing of the process may be left in it."""
    folder = Path(tempfile.mkdtemp(prefix="dm-", dir="/tmp"))
    for name in list(os.environ):
        if name.startswith(("DYN", "NATS_", "ETCD_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DYNAMOD_SOCKET", str(folder / "d.sock"))
    monkeypatch.setenv("DYNAMOD_CLUSTER", "off")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    root = list(logging.getLogger().handlers)
    yield folder
    end = time.monotonic() + 5  # the daemon that was started for the test ends with its last client
    while (left := sorted(path.name for path in folder.iterdir())) not in ([], ["d.sock.lock"]):
        assert time.monotonic() < end, left
        time.sleep(0.01)
    shutil.rmtree(folder)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [one for one in logging.getLogger().handlers if one not in root] == []
    assert connection_module._connections == {}


@pytest.fixture
async def tasks() -> AsyncIterator[None]:
    """No task of the test may be left."""
    before = asyncio.all_tasks()
    yield
    mine = asyncio.current_task()  # the fixture's own
    assert {task for task in asyncio.all_tasks() - before if task is not mine} == set()
