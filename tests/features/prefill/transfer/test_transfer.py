"""Blocks over real sockets, by each backend."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dynamod.features.prefill.transfer import server
from dynamod.features.prefill.transfer.base import Block, TransferError
from dynamod.features.prefill.transfer.frames import PIECE, WINDOW
from dynamod.features.prefill.transfer.names import BACKENDS
from dynamod.features.prefill.transfer.reader import read
from tests.ports import free_port

from .places import LAYOUT, Source, broken, by_all_backends, collect, each_backend, some_blocks, until


def test_each_backend_is_tested() -> None:
    assert list(BACKENDS) == ["shm", "tls", "nixl", "tcp"], "with TLS before in the clear, where both are there"


@each_backend
async def test_many_blocks_in_order(backend: str, tmp_path: Path) -> None:
    blocks = some_blocks(3000) + some_blocks(3, 3 * PIECE + 17) + [Block(0, b""), Block(7, b"x"), Block(8, b"")]
    ends: list[str] = []
    async with Source(tmp_path) as source:
        session = source.sessions.open(ends.append)
        for block in blocks:
            session.put(block.name, block.data)
        session.finish()
        assert await collect(source.reading(backend, session.id)) == blocks
        await until(lambda: ends == ["read"])
        statistics = source.sessions.statistics()
        assert (statistics.open, statistics.held_bytes, statistics.read) == (0, 0, 1)
        assert statistics.sent_blocks == len(blocks)
        assert statistics.sent_bytes == sum(len(block.data) for block in blocks)
    assert os.listdir(tmp_path) == []


@each_backend
async def test_one_block_larger_than_all_that_may_be_under_way(backend: str, tmp_path: Path) -> None:
    block = Block(5, os.urandom(3 * WINDOW + 1))
    async with Source(tmp_path) as source:
        assert await collect(source.reading(backend, source.filled([block]).id)) == [block]


@each_backend
async def test_a_session_without_blocks(backend: str, tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        assert await collect(source.reading(backend, source.filled([]).id)) == []
        assert await collect(source.reading(backend, source.filled(some_blocks(3)).id, 3)) == []
        assert await collect(source.reading(backend, source.filled(some_blocks(3)).id, 9)) == []
        await until(lambda: source.sessions.statistics().read == 3)


@each_backend
async def test_a_reader_that_broke_off_goes_on_where_it_was(backend: str, tmp_path: Path) -> None:
    blocks = some_blocks(200, 100_000)
    async with Source(tmp_path) as source:
        session = source.filled(blocks)
        got: list[Block] = []
        async with contextlib.aclosing(source.reading(backend, session.id)) as reading:
            async for block in reading:
                got.append(block)
                if len(got) == 100:
                    break
        assert 100 * 100_000 <= source.sessions.statistics().held_bytes < 200 * 100_000, "some that were taken are gone"
        with pytest.raises(TransferError, match="are not here any more") as gone:
            await collect(source.reading(backend, session.id))
        assert gone.value.kind == "gone"
        got += await collect(source.reading(backend, session.id, 100))
        assert got == blocks
        await until(lambda: source.sessions.statistics().read == 1)


@each_backend
async def test_blocks_are_read_while_the_prompt_is_computed(backend: str, tmp_path: Path) -> None:
    blocks = some_blocks(5)
    async with Source(tmp_path) as source:
        session = source.sessions.open()
        reading = source.reading(backend, session.id)
        for block in blocks:
            session.put(block.name, block.data)
            async with asyncio.timeout(5):
                assert await anext(reading) == block
        session.finish()
        assert await collect(reading) == []


async def test_waiting_for_the_engine_is_no_stall_and_no_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BEAT", 0.1)

    async def play(backend: str) -> None:
        async with Source(tmp_path, lease=0.7) as source:
            session = source.sessions.open()
            asyncio.get_running_loop().call_later(1.2, session.put, 1, b"late")
            asyncio.get_running_loop().call_later(1.2, session.finish)
            assert await collect(source.reading(backend, session.id, stall=0.7)) == [Block(1, b"late")]

    await by_all_backends(play)


@each_backend
@pytest.mark.parametrize(("size", "most"), [(3000, 10_000), (3000, 1000), (1_500_000, 4_000_000), (9_000_000, 10**7)])
async def test_a_prompt_larger_than_all_that_the_source_may_hold(
    backend: str, size: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks wait for those before them to be taken, and so do those of another one beside it."""
    monkeypatch.setattr(server, "BEAT", 1000.0)  # nothing has to wait for a sign of life
    blocks, held = some_blocks(20, size), list[int]()
    async with Source(tmp_path, most_bytes=most) as source:
        sessions = [source.sessions.open() for _ in range(2)]
        for session in sessions:
            source.export(session, blocks)
        reading = [collect(_watched(source.reading(backend, session.id), source, held)) for session in sessions]
        async with asyncio.timeout(20):
            assert await asyncio.gather(*reading) == [blocks, blocks]
        assert max(held) <= max(size, most)
        await until(lambda: source.sessions.statistics().read == 2)
        assert source.sessions.statistics().held_bytes == 0
        assert all(export.done() for export in source.exports)


async def _watched(
    reading: AsyncGenerator[Block, None], source: Source, held: list[int]
) -> AsyncGenerator[Block, None]:
    async for block in reading:
        held.append(source.sessions.statistics().held_bytes)
        yield block


async def test_a_full_source_ends_the_session_that_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BEAT", 0.1)
    blocks = some_blocks(20, 3000)

    async def play(backend: str) -> None:
        async with Source(tmp_path, most_bytes=9000, lease=0.7) as source:
            unread, read_ = source.sessions.open(), source.sessions.open()
            source.export(unread, blocks)
            await until(lambda: source.sessions.statistics().held_bytes == 9000)
            source.export(read_, blocks)
            async with asyncio.timeout(20):
                assert await collect(source.reading(backend, read_.id)) == blocks
            statistics = source.sessions.statistics()
            assert (statistics.expired, unread.ended) == (1, True)

    await by_all_backends(play)


@each_backend
async def test_a_reader_that_resumes_at_a_full_source(backend: str, tmp_path: Path) -> None:
    blocks = some_blocks(40, 3000)
    async with Source(tmp_path, most_bytes=9000) as source:
        session = source.sessions.open()
        source.export(session, blocks)
        got: list[Block] = []
        async with contextlib.aclosing(source.reading(backend, session.id)) as reading:
            async for block in reading:
                got.append(block)
                if len(got) == 15:
                    break
        got += await collect(source.reading(backend, session.id, 15))
        assert got == blocks


@each_backend
async def test_refusals(backend: str, tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        session = source.filled(some_blocks(2))
        with pytest.raises(TransferError, match="layout") as other:
            await collect(source.reading(backend, session.id, layout="16 bit"))
        with pytest.raises(TransferError, match="no such session") as unknown:
            await collect(source.reading(backend, "guess"))
        assert (other.value.kind, unknown.value.kind) == ("layout", "gone")
        assert source.sessions.statistics().sent_bytes == 0
        await collect(source.reading(backend, session.id))
        await until(lambda: source.sessions.statistics().open == 0)
        with pytest.raises(TransferError) as again:
            await collect(source.reading(backend, session.id))
        assert again.value.kind == "gone"


@each_backend
async def test_an_expired_session_is_gone(backend: str, tmp_path: Path) -> None:
    async with Source(tmp_path, lease=0.05) as source:
        session = source.filled(some_blocks(2))
        await until(lambda: source.sessions.statistics().expired == 1)
        with pytest.raises(TransferError) as gone:
            await collect(source.reading(backend, session.id))
        assert gone.value.kind == "gone"


@each_backend
async def test_a_second_reader_is_refused_and_the_first_goes_on(backend: str, tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        session = source.sessions.open()
        session.put(1, b"one")
        reading = source.reading(backend, session.id)
        assert await anext(reading) == Block(1, b"one")
        with pytest.raises(TransferError, match="another reader") as second:
            await collect(source.reading("tcp", session.id))
        assert second.value.kind == "gone"
        session.finish()
        assert await collect(reading) == []


@each_backend
async def test_a_slow_reader_bounds_what_is_under_way(backend: str, tmp_path: Path) -> None:
    blocks = some_blocks(400, 100_000)
    async with Source(tmp_path) as source:
        session = source.filled(blocks)
        reading = source.reading(backend, session.id, stall=0.3)
        got = [await anext(reading)]
        await asyncio.sleep(0.5)  # longer than a stall: the silence is ours
        assert source.sessions.statistics().sent_bytes <= 3 * WINDOW
        for turn in range(20):
            got.append(await anext(reading))
            await asyncio.sleep(0.01)
            assert source.sessions.statistics().sent_bytes <= (turn + 2) * 100_000 + 3 * WINDOW
        assert got + await collect(reading) == blocks


async def test_the_lease_is_for_readers_that_take_nothing_not_for_slow_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BEAT", 0.1)
    blocks = some_blocks(200, 100_000)

    async def play(backend: str) -> None:
        async with Source(tmp_path, lease=1.0) as source:
            reading = source.reading(backend, source.filled(blocks).id)
            got = []
            for _ in range(6):
                got.append(await anext(reading))
                await asyncio.sleep(0.25)
            assert source.sessions.statistics().expired == 0
            await until(lambda: source.sessions.statistics().expired == 1)
            rest, error = await broken(reading)
            assert error.kind == "gone"
            assert [*got, *rest] == blocks[: len(got) + len(rest)]

    await by_all_backends(play)


@each_backend
async def test_released_and_failed_while_it_is_read(backend: str, tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        for end, kind in (("release", "gone"), ("fail", "failed")):
            session = source.sessions.open()
            session.put(1, b"one")
            reading = source.reading(backend, session.id)
            assert await anext(reading) == Block(1, b"one")
            if end == "fail":
                session.fail("the engine has died " * 1000)
            else:
                session.release()
            with pytest.raises(TransferError) as over:
                await anext(reading)
            assert over.value.kind == kind
        statistics = source.sessions.statistics()
        assert (statistics.released, statistics.failed, statistics.held_bytes) == (1, 1, 0)
        await until(lambda: not source.server._ends)


async def test_the_best_backend_that_both_have(tmp_path: Path) -> None:
    blocks = some_blocks(3)
    async with Source(tmp_path) as source, Source(None, "localhost") as remote:
        assert {"shm", "tcp"} <= source.server.addresses.keys() <= BACKENDS.keys()
        assert {"tcp"} <= remote.server.addresses.keys() <= {"nixl", "tcp"}
        everywhere = {**source.server.addresses, "rdma": "of another version"}
        assert await collect(read(everywhere, source.filled(blocks).id, LAYOUT, 0)) == blocks
        elsewhere = {**remote.server.addresses, "shm": str(tmp_path / "of-another-machine.sock")}
        assert await collect(read(elsewhere, remote.filled(blocks).id, LAYOUT, 0)) == blocks


async def test_nobody_is_there(tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        addresses = source.server.addresses
    wrong = [addresses, {}, {"tcp": "nowhere"}, {"tcp": "127.0.0.1:99999"}, {"shm": "x" * 200}, {"rdma": "somewhere"}]
    for one in wrong:
        with pytest.raises(TransferError) as unreachable:
            await collect(read(one, "session", LAYOUT, 0))
        assert unreachable.value.kind == "unreachable"
        assert "\n" not in str(unreachable.value)


async def test_only_the_own_user_may_connect(tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        assert os.stat(source.server.addresses["shm"]).st_mode & 0o777 == 0o600


async def test_a_folder_whose_name_is_too_long_leaves_tcp(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    async with Source(folder) as source:
        assert "shm" not in source.server.addresses
        assert "tcp" in source.server.addresses


async def test_a_fixed_port(tmp_path: Path) -> None:
    port, blocks = free_port(), some_blocks(3)
    async with Source(tmp_path, port=port) as source:
        assert source.server.addresses["tcp"] == f"127.0.0.1:{port}"
        assert await collect(source.reading("tcp", source.filled(blocks).id)) == blocks
        second = Source(tmp_path)
        with pytest.raises(OSError, match=f"Address already in use: port {port} of 127.0.0.1"):
            await second.server.start("127.0.0.1", port)
        second.server.close()
    async with Source(tmp_path, port=port) as again:
        assert await collect(again.reading("tcp", again.filled(blocks).id)) == blocks


async def test_an_address_that_is_not_ours_is_an_error() -> None:
    source = Source(None, "192.0.2.1")
    with pytest.raises(OSError, match="tcp"):
        await source.server.start("192.0.2.1")
