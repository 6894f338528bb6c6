"""Memory that is passed between processes: what is left, and what happens when it is not passed."""

import asyncio
import os
from pathlib import Path

import pytest

from dynamod.features.prefill.transfer import reader
from dynamod.features.prefill.transfer.base import Block
from dynamod.features.prefill.transfer.reader import read

from .places import LAYOUT, Source, collect, some_blocks, until

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")

BLOCKS = some_blocks(3)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("dynamod-blocks")


async def test_a_transfer_leaves_no_descriptor_and_no_memory(tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        before = descriptors()
        for turn in range(5):
            reading = source.reading("shm", source.filled(BLOCKS).id)
            if turn % 2:
                assert await collect(reading) == BLOCKS
            else:
                assert await anext(reading) == BLOCKS[0]
                await reading.aclose()
        await until(lambda: not source.server._ends and not mappings())
        await until(lambda: descriptors() == before)


async def test_a_reader_that_is_cancelled_leaves_nothing_either(tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        before = descriptors()
        session = source.sessions.open()
        for moment in (0, 1, 2, 3, 5, 8):
            task = source.spawn(collect(source.reading("shm", session.id)), "reading")
            for _ in range(moment):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await until(lambda: not source.server._ends and not mappings() and descriptors() == before)


@pytest.mark.parametrize("first", [b"", b"\0", b"hello"], ids=["silence", "no memory", "a stranger"])
async def test_without_memory_the_blocks_come_over_tcp(
    first: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CONNECT_TIMEOUT", 0.3)
    ended = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        await ended.wait()
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "other.sock")
    async with Source(None) as source:
        addresses = {"shm": str(tmp_path / "other.sock"), **source.server.addresses}
        assert await collect(read(addresses, source.filled(BLOCKS).id, LAYOUT, 0)) == BLOCKS
    ended.set()
    server.close()
    await asyncio.sleep(0.01)


async def test_a_source_without_memory_sends_readers_to_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise OSError("no memory")

    async with Source(tmp_path) as source:
        monkeypatch.setattr(os, "memfd_create", none)
        assert await collect(read(source.server.addresses, source.filled(BLOCKS).id, LAYOUT, 0)) == BLOCKS
        monkeypatch.delattr(os, "memfd_create")
        async with Source(tmp_path) as other:
            assert "shm" not in other.server.addresses


async def test_two_transfers_at_once_have_their_own_memory(tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        many = [[Block(name, os.urandom(70_000)) for name in range(60)] for _ in range(3)]
        readings = [collect(source.reading("shm", source.filled(blocks).id)) for blocks in many]
        assert await asyncio.gather(*readings) == many
