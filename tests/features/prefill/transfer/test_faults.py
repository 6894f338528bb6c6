"""Sources and readers that break, lie, or fall silent."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dynamod.features.prefill.transfer import nixl, reader, sending
from dynamod.features.prefill.transfer.base import TransferError
from dynamod.features.prefill.transfer.frames import (
    VERSION,
    WINDOW,
    Accept,
    Credit,
    End,
    Failed,
    Frame,
    Head,
    Hello,
    Idle,
    Piece,
    pack,
)
from dynamod.features.prefill.transfer.reader import read
from dynamod.features.prefill.transfer.sessions import Sessions
from dynamod.transport.tls import PeerTls

from .places import (
    LAYOUT,
    Broken,
    Source,
    asked,
    broken,
    collect,
    each_backend,
    framed,
    peer_tls,
    scripted,
    some_blocks,
    until,
)

ONE, TWO = some_blocks(2)


async def fault(address: str, stall: float = 5.0, first: int = 0) -> Broken:
    """What came before the error, and the error."""
    return await broken(asked(address, first, stall))


@pytest.mark.parametrize(
    "block",
    [
        framed(TWO, data=TWO.data[:-1] + b"!"),
        framed(TWO, data=TWO.data[:-1]),
        framed(TWO, named=ONE.name),
        framed(ONE, data=TWO.data),
    ],
    ids=["one byte", "one byte less", "another name", "another block's bytes"],
)
async def test_a_damaged_block(block: bytes) -> None:
    async with scripted(framed(ONE), block, End(2)) as address:
        got, error = await fault(address)
    assert got == [ONE]
    assert error.kind == "damaged"


@pytest.mark.parametrize(
    "script",
    [
        [b"\xff\xff\xff\xff"],
        [Head(1, 10, 0), Piece(11)],
        [Piece(1)],
        [Head(1, 10, 0), Head(2, 10, 0)],
        [Head(1, 10, 0), End(1)],
        [Hello(VERSION, "", "", 0)],
        [Head(1, 2**30 + 1, 0)],
        [Credit(1)],
    ],
)
async def test_frames_out_of_place(script: list[Frame | bytes]) -> None:
    async with scripted(*script) as address:
        got, error = await fault(address)
    assert (got, error.kind) == ([], "damaged")


async def test_a_source_that_sends_without_credit_does_not_fill_the_memory() -> None:
    blocks = some_blocks(40, 2**20)
    async with scripted(*[framed(block) for block in blocks], End(40)) as address:
        reading = asked(address)
        assert await anext(reading) == blocks[0]
        await asyncio.sleep(0.5)
        got, error = await broken(reading)
    assert error.kind == "damaged"
    assert len(got) <= 2 * WINDOW // 2**20 + 1
    assert got == blocks[1 : len(got) + 1]


async def test_one_wrong_byte_anywhere_is_never_taken_for_a_block() -> None:
    blocks = some_blocks(3, 20)
    wire = b"".join([pack(Accept()), *map(framed, blocks), pack(End(3))])
    for place in range(len(wire)):
        damaged = bytearray(wire)
        damaged[place] ^= 1 << place % 8
        async with scripted(bytes(damaged), accept=False, stay=False) as address:
            got, error = await fault(address)
        assert got == blocks[: len(got)]
        assert error.kind in ("damaged", "short", "unreachable")


@pytest.mark.parametrize("script", [[End(0)], [Idle()], [Head(1, 1, 0)], [b"HTTP/1.1 400 Bad Request\r\n\r\n"]])
async def test_a_stranger_behind_the_address(script: list[Frame | bytes]) -> None:
    async with scripted(*script, accept=False) as address:
        assert (await fault(address))[1].kind == "damaged"


@pytest.mark.parametrize("tail", [b"", framed(TWO)[:10], framed(TWO)[:-1], framed(TWO)])
async def test_a_truncated_stream(tail: bytes) -> None:
    async with scripted(framed(ONE), tail, stay=False) as address:
        got, error = await fault(address)
    assert got == ([ONE, TWO] if tail == framed(TWO) else [ONE])
    assert error.kind == "short"


@pytest.mark.parametrize(("first", "count"), [(0, 3), (0, 1), (5, 6), (5, 8)])
async def test_an_end_that_does_not_fit_the_blocks(first: int, count: int) -> None:
    async with scripted(framed(ONE), framed(TWO), End(count)) as address:
        got, error = await fault(address, first=first)
    assert (got, error.kind) == ([ONE, TWO], "short")


@pytest.mark.parametrize("script", [[], [Head(1, 10, 0)], [framed(TWO)[:-1]], [Head(1, 2**20, 0), Piece(2**20)]])
async def test_a_source_that_stalls(script: list[Frame | bytes]) -> None:
    async with scripted(framed(ONE), *script) as address:
        begun = time.monotonic()
        got, error = await fault(address, stall=0.3)
    assert (got, error.kind) == ([ONE], "stalled")
    assert 0.3 <= time.monotonic() - begun < 5


async def test_a_source_that_never_answers_and_one_that_leaves_at_once() -> None:
    async with scripted(accept=False) as address:
        assert (await fault(address, stall=0.2))[1].kind == "stalled"
    async with scripted(accept=False, stay=False) as address:
        assert (await fault(address))[1].kind == "unreachable"


async def test_the_reasons_of_the_source_arrive() -> None:
    for kind in ("gone", "layout", "failed"):
        async with scripted(Failed(kind, "in words"), accept=False) as address:
            error = (await fault(address))[1]
            assert (error.kind, str(error)) == (kind, "in words")
    async with scripted(framed(ONE), Failed("of a later version", "in words")) as address:
        got, error = await fault(address)
        assert (got, error.kind) == ([ONE], "failed")


async def _raw(address: str, *frames: Frame | bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for frame in frames:
        writer.write(frame if isinstance(frame, bytes) else pack(frame))
    return reader, writer


@pytest.mark.parametrize(
    "frame", [b"GET / HTTP/1.1\r\n\r\n", End(1), Credit(1), b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\xc1"]
)
async def test_a_stranger_at_the_source(frame: Frame | bytes) -> None:
    async with Source(None) as source:
        reader, writer = await _raw(source.server.addresses["tcp"], frame)
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert b"damaged" in answer
        writer.close()
        await until(lambda: not source.server._ends)


async def test_a_reader_of_another_version_is_refused() -> None:
    async with Source(None) as source:
        session = source.filled([ONE])
        reader, writer = await _raw(source.server.addresses["tcp"], Hello(VERSION + 1, session.id, LAYOUT, 0))
        async with asyncio.timeout(5):
            assert b"version" in await reader.read()
        writer.close()


async def test_who_never_names_a_session_is_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PATIENCE", 0)
    async with Source(None) as source:
        reader, writer = await _raw(source.server.addresses["tcp"])
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await until(lambda: not source.server._ends)


async def test_a_reader_that_takes_nothing_costs_its_lease_and_no_more() -> None:
    async with Source(None, lease=0.5) as source:
        session = source.filled(some_blocks(300, 100_000))
        _, writer = await _raw(source.server.addresses["tcp"], Hello(VERSION, session.id, LAYOUT, 0))
        await until(lambda: source.sessions.statistics().sent_blocks > 0)
        assert source.sessions.statistics().sent_bytes <= WINDOW
        await until(lambda: source.sessions.statistics().expired == 1)
        assert source.sessions.statistics().held_bytes == 0
        writer.close()
        await until(lambda: not source.server._ends)


async def test_a_reader_that_leaves_too_often_ends_the_session(tmp_path: Path) -> None:
    async with Source(tmp_path) as source:
        session = source.filled(some_blocks(100, 100_000))
        for _ in range(2):
            async with contextlib.aclosing(source.reading("shm", session.id)) as reading:
                await anext(reading)
            await until(lambda: not source.server._ends)
        assert source.sessions.statistics().failed == 1
        assert source.sessions.statistics().held_bytes == 0


def _source_process(pipe: Connection, folder: str, tls: PeerTls) -> None:
    nixl.DEVICES = Path("/")

    async def main() -> None:
        async with Source(Path(folder), tls=tls) as source:
            session = source.sessions.open()
            for block in some_blocks(300, 100_000):
                session.put(block.name, block.data)
            pipe.send((source.addresses, session.id))
            await asyncio.sleep(60)

    asyncio.run(main())


@each_backend
async def test_a_source_that_is_killed_while_it_is_read(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CONNECT_TIMEOUT", 10)  # the first use of NIXL takes time
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    given = (theirs, str(tmp_path), peer_tls())
    process = multiprocessing.get_context("spawn").Process(target=_source_process, args=given)
    tls = peer_tls() if backend == "tls" else None
    process.start()
    pid = process.pid
    try:
        addresses, session = await asyncio.to_thread(ours.recv)

        def at(count: int) -> None:
            if count == 5 and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)

        async with asyncio.timeout(10):
            got, error = await broken(read({backend: addresses[backend]}, session, LAYOUT, 0, tls=tls), at)
        assert error.kind == "short", error
        assert 5 <= len(got) < 300
        assert got == some_blocks(300, 100_000)[: len(got)]
    finally:
        process.kill()
        process.join()
        process.close()
    if os.path.isdir("/dev/shm"):
        left = {name for name in set(os.listdir("/dev/shm")) - before if "dynamod" in name}
        others = {name for name in left if name.startswith("dynamod-trace-") and f"-{pid}-" not in name}
        assert left <= others, "request traces of other tests, which run at the same time"
    with pytest.raises(TransferError) as gone:
        await collect(read({backend: addresses[backend]}, session, LAYOUT, 0, tls=tls))
    assert gone.value.kind == "unreachable"


def _reader_process(pipe: Connection) -> None:
    async def main() -> None:
        addresses, session = pipe.recv()
        async for block in read(addresses, session, LAYOUT, 0):
            pipe.send(block.name)
            pipe.recv()

    asyncio.run(main())


async def test_a_reader_that_is_killed_leaves_the_blocks_for_the_next(tmp_path: Path) -> None:
    blocks = some_blocks(300, 100_000)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_reader_process, args=(theirs,))
    process.start()
    async with Source(tmp_path) as source:
        session = source.filled(blocks)
        ours.send((source.server.addresses, session.id))
        try:
            assert await asyncio.to_thread(ours.recv) == blocks[0].name
        finally:
            process.kill()
            process.join()
            process.close()
        await until(lambda: not source.server._ends)
        assert await collect(source.reading("tcp", session.id)) == blocks
        await until(lambda: source.sessions.statistics().read == 1)


async def test_a_reader_is_asked_for_nothing_before_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks wait for room when the reader comes, and blocks before its first one are dropped at once."""
    monkeypatch.setattr(Sessions, "full", property(lambda _self: True))
    async with Source(None) as source:
        session = source.filled([ONE, ONE])
        stream, writer = await _raw(source.server.addresses["tcp"], Hello(VERSION, session.id, LAYOUT, 1))
        async with asyncio.timeout(5):
            found = await stream.readexactly(len(pack(Accept())))
        assert found == pack(Accept())
        writer.close()
        await until(lambda: not source.server._ends)
