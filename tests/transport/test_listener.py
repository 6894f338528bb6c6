"""A socket file that another program removes, and the end of the one that listens there."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamod.transport import unix as module
from dynamod.transport.unix import Listener
from tests.discovery.conftest import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    listener = Listener(str(tmp_path / "s"), asyncio.Protocol)
    await listener.start()
    kept = asyncio.create_task(listener.keep())
    yield listener
    kept.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await kept
    gc.collect()  # a socket that is still open warns here


async def test_a_removed_file_is_there_again(listener: Listener, tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "s").unlink()
        await until((tmp_path / "s").exists)
        _reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.close()
        await writer.wait_closed()
    await listener.stop()
    await listener.close()


async def test_after_its_end_nothing_listens_although_the_file_has_gone(listener: Listener, tmp_path: Path) -> None:
    await listener.stop()
    await listener.close()
    await asyncio.sleep(0.1)
    assert not (tmp_path / "s").exists()


async def test_an_end_while_it_begins_to_listen_again(listener: Listener, tmp_path: Path) -> None:
    (tmp_path / "s").unlink()
    await asyncio.sleep(0.009)
    for _ in range(10_000):
        if (tmp_path / "s").exists():
            break
        await asyncio.sleep(0)  # seen in the turn in which the file is there, and the server still begins
    await listener.close()
    await asyncio.sleep(0.05)
    assert not (tmp_path / "s").exists()
