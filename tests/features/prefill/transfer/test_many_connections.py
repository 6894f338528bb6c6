"""Connections to the port of block transfers are bounded, and cost little before they say anything."""

import asyncio

import pytest

from dynamod.features.prefill.transfer import sending
from dynamod.features.prefill.transfer.link import FIRST_BUFFER
from dynamod.features.prefill.transfer.server import BlockServer

from .places import Source


async def opened(port: int, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]


async def test_silent_connections_of_one_peer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MOST_UNKNOWN_PER_PEER", 20)
    async with Source(None) as source:
        await _bounded(source.server)


async def _bounded(server: BlockServer) -> None:
    port = int(server.addresses["tcp"].rpartition(":")[2])
    readers = await opened(port, 50)
    await asyncio.sleep(0.1)
    assert len(server._ends) == 20
    assert all(len(end._buffer) == FIRST_BUFFER for end in server._ends)
    ends = [
        await asyncio.wait_for(reader.read(), 5) if number >= 20 else None for number, (reader, _) in enumerate(readers)
    ]
    assert ends[20:] == [b""] * 30
    assert server._ends.refused == 30
    for _, writer in readers[:5]:
        writer.close()
    await asyncio.sleep(0.1)
    readers += await opened(port, 2)
    await asyncio.sleep(0.1)
    assert len(server._ends) == 17
    for _, writer in readers:
        writer.close()
    await asyncio.sleep(0.1)
    assert not server._ends
