"""The NIXL backend with an agent that copies inside this process; with the real one the other modules try it too."""

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.features.prefill.transfer import nixl
from dynamod.features.prefill.transfer.base import TransferError
from dynamod.features.prefill.transfer.frames import PIECE, WINDOW
from dynamod.features.prefill.transfer.reader import read

from .places import LAYOUT, Source, collect, some_blocks, until

BLOCKS = [*some_blocks(50), *some_blocks(3, 3 * PIECE + 17)]


class Handle:
    def __init__(self, api: "FakeApi", polls: int) -> None:
        self.api, self.polls = api, polls
        api.open += 1

    def release(self) -> None:
        self.api.open -= 1


class FakeApi:
    """What is used of nixl_agent. `polls`: looks after which a read is done."""

    def __init__(self) -> None:
        self.polls, self.open = 0, 0
        self.fault = ""

    def __call__(self, name: str, config: object) -> "FakeApi":
        return self

    def register_memory(self, regions: list[Any], kind: str) -> None:
        assert regions[0][1] == nixl.MOST * WINDOW

    def get_agent_metadata(self) -> bytes:
        return b"agent" if self.fault != "long" else bytes(20_000)

    def add_remote_agent(self, metadata: bytes) -> str:
        raise RuntimeError("unknown agent")

    def remove_remote_agent(self, name: str) -> None:
        raise AssertionError("never added")

    def get_xfer_descs(self, regions: list[tuple[int, int, int]], kind: str) -> tuple[int, int]:
        return regions[0][:2]

    def initialize_xfer(self, what: str, local: tuple[int, int], remote: tuple[int, int], agent: str) -> Handle:
        if self.fault == "post":
            raise RuntimeError("the other agent is gone")
        ctypes.memmove(local[0], remote[0], local[1])
        return Handle(self, self.polls)

    def transfer(self, handle: Handle) -> None:
        pass

    def check_xfer_state(self, handle: Handle) -> str:
        handle.polls -= 1
        return "PROC" if handle.polls >= 0 else self.fault or "DONE"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    fake = FakeApi()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "nixl" or find_spec(name))
    monkeypatch.setitem(sys.modules, "nixl._api", SimpleNamespace(nixl_agent=fake, nixl_agent_config=dict))  # type: ignore[arg-type]
    monkeypatch.setattr(nixl, "_SPIN", 0)
    monkeypatch.setattr(nixl, "MOST", 2)
    nixl._agent.cache_clear()
    yield fake
    nixl._agent.cache_clear()
    assert fake.open == 0


@pytest.mark.parametrize("polls", [0, 3])
async def test_blocks_by_reads_that_are_done_at_once_or_later(polls: int, api: FakeApi) -> None:
    api.polls = polls
    async with Source(None) as source:
        assert list(source.server.addresses) == ["nixl", "tcp"]
        for _ in range(nixl.MOST + 2):  # the memory comes back
            assert await collect(source.reading("nixl", source.filled(BLOCKS).id)) == BLOCKS
            await until(lambda: not source.server._ends)
            api.polls = polls and 1


async def test_a_read_that_fails(api: FakeApi) -> None:
    async with Source(None) as source:
        for api.fault in ("ERR", "post"):
            for api.polls in (0, 3):
                with pytest.raises(TransferError) as error:
                    await collect(source.reading("nixl", source.filled(BLOCKS).id))
                assert error.value.kind == "short"


async def test_a_read_that_never_ends_is_a_stall(api: FakeApi) -> None:
    api.polls = 10**9
    async with Source(None) as source:
        with pytest.raises(TransferError) as error:
            await collect(source.reading("nixl", source.filled(BLOCKS).id, stall=0.3))
        assert error.value.kind == "stalled"


async def test_a_source_that_leaves_during_a_read(api: FakeApi) -> None:
    api.polls = 10**9
    async with Source(None) as source:
        session = source.filled(BLOCKS)
        task = source.spawn(collect(source.reading("nixl", session.id)), "reading")
        await until(lambda: api.open == 1)
        source.server.close()
        with pytest.raises(TransferError) as error:
            await task
        assert error.value.kind == "short"


@pytest.mark.parametrize("size", [1, 3])
async def test_many_frames_behind_a_read_that_takes_longer(size: int, api: FakeApi) -> None:
    blocks = some_blocks(5000, size)
    async with Source(None) as source:
        reading = source.reading("nixl", source.filled(blocks).id)
        api.polls = 100
        got = [await anext(reading)]
        api.polls = 0
        assert got + await collect(reading) == blocks


async def test_whoever_cannot_be_served_takes_tcp(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Source(None) as source:
        agent = nixl._agent()
        free = [agent.take() for _ in range(nixl.MOST)]
        addresses = source.server.addresses
        assert await collect(read(addresses, source.filled(BLOCKS).id, LAYOUT, 0)) == BLOCKS  # none for the reader
        assert free[0] is not None
        free[0].free()
        free[0].free()
        assert await collect(read(addresses, source.filled(BLOCKS).id, LAYOUT, 0)) == BLOCKS  # none for the source
        for part in free:
            assert part is not None
            part.free()
        await until(lambda: not source.server._ends)
        agent.metadata = b"of another process"
        monkeypatch.setattr(agent, "known", api.add_remote_agent)
        assert await collect(read(addresses, source.filled(BLOCKS).id, LAYOUT, 0)) == BLOCKS  # agents do not meet
        monkeypatch.setattr(nixl, "DEVICES", nixl.DEVICES / "nowhere")
        assert await collect(read(addresses, source.filled(BLOCKS).id, LAYOUT, 0)) == BLOCKS
        async with Source(None) as other:
            assert list(other.server.addresses) == ["tcp"]


async def test_an_agent_that_cannot_be_described_is_not_offered(api: FakeApi) -> None:
    api.fault = "long"
    async with Source(None) as source:
        assert list(source.server.addresses) == ["tcp"]


async def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> None:
    async with Source(None) as source:
        addresses = {"nixl": source.server.addresses["nixl"]}
        session = source.filled(BLOCKS)
        monkeypatch.setattr(nixl, "DEVICES", nixl.DEVICES / "nowhere")
        with pytest.raises(TransferError, match="there is no card for NIXL in /nowhere"):
            await collect(read(addresses, session.id, LAYOUT, 0))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(TransferError, match=r"NIXL is not installed: .*pip install '.*\[nixl\]'"):
            await collect(read(addresses, session.id, LAYOUT, 0))
        assert await collect(read(source.server.addresses, session.id, LAYOUT, 0)) == BLOCKS  # by the next backend
