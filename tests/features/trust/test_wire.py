"""Signed requests, values and block sessions between two ends, and ends of a release without signatures."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.features.prefill.transfer import frames
from dynamod.features.prefill.transfer.base import TransferError
from dynamod.features.prefill.transfer.reader import read
from dynamod.features.prefill.transfer.server import BlockServer
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Failed
from dynamod.message.worker import Call, Generate, Open, Request, ToWorker
from dynamod.transport.base import Reply
from dynamod.transport.inbox import Inbox
from dynamod.transport.outbox import Outbox
from dynamod.transport.signing import RequestSigning, Signing, is_signed
from dynamod.transport.unix import UnixServer, UnixTransport
from tests.features.prefill.transfer.places import LAYOUT, Source, collect, some_blocks
from tests.transport.test_unix import ADDRESS, Collector

from .conftest import OURS, THEIRS, signing

REQUEST = Generate("r", "m", b"\1\0\0\0")


def opened(sender: Signing | None, request: Request = REQUEST, where: str = "there") -> bytes:
    """What an ingress writes to open a stream."""
    written: list[bytes] = []
    own = RequestSigning(sender, where) if sender is not None else None
    Inbox(written.append, own).open("dynamo.backend.generate", request, Collector())
    return written[0]


class Worker:
    """A worker's end of a link, and what it took."""

    def __init__(self, own: Signing | None, where: str = "there") -> None:
        self.taken: list[tuple[Request, str]] = []
        self.written: list[bytes] = []
        self.outbox = Outbox(self.written.append, RequestSigning(own, where) if own is not None else None)

    def take(self, payload: bytes) -> None:
        self.outbox.take(payload, lambda _endpoint, request, reply: self.taken.append((request, reply.signer)))


async def test_a_signed_request_is_taken_with_its_node() -> None:
    worker = Worker(signing("require", node="two"))
    worker.take(opened(signing("accept")))
    assert worker.taken == [(REQUEST, "one")]


async def test_the_last_release_reads_signed_requests_and_is_read() -> None:
    signed, plain = opened(signing("accept")), opened(None)
    decoder = msgspec.msgpack.Decoder(ToWorker)
    assert decoder.decode(signed) == decoder.decode(plain) == Open(1, "dynamo.backend.generate", REQUEST)
    assert len(signed) - len(plain) < 100
    parts = msgspec.msgpack.decode(signed, type=list[msgspec.Raw])
    assert is_signed(parts)
    assert not is_signed(parts[:4])
    for mode in ("off", "accept"):
        worker = Worker(signing(mode, node="two"))  # type: ignore[arg-type]
        worker.take(plain)
        assert worker.taken == [(REQUEST, "")]


@pytest.mark.parametrize("sender", [None, signing("off"), signing("accept", THEIRS)])
async def test_a_request_without_the_secret_is_refused_and_may_go_elsewhere(sender: Signing | None) -> None:
    worker = Worker(signing("require", node="two"))
    worker.take(opened(sender))
    await asyncio.sleep(0)
    assert worker.taken == []
    (failed,) = _failures(worker.written)
    assert failed.retry
    assert "the worker does not take the request" in failed.message


def _failures(written: list[bytes]) -> list[Failed]:
    deltas: list[Failed] = []

    class Sink(Collector):
        def delta(self, delta: Any) -> None:
            deltas.append(delta)

    inbox = Inbox(lambda _payload: None)
    inbox.open("e", REQUEST, Sink())
    for payload in written:
        inbox.frame(payload)
    return [delta for delta in deltas if isinstance(delta, Failed)]


async def test_a_request_for_another_worker_or_a_second_time_is_refused() -> None:
    payload = opened(signing("accept"))
    elsewhere = Worker(signing("require", node="three"), "elsewhere")
    elsewhere.take(payload)
    assert elsewhere.taken == []
    worker = Worker(signing("require", node="two"))
    worker.take(payload)
    worker.take(payload)
    assert len(worker.taken) == 1


async def test_over_a_unix_socket_of_another_node(tmp_path: Path) -> None:
    signers: list[str] = []

    def answer(_endpoint: str, _request: Request, reply: Reply) -> None:
        signers.append(reply.signer)
        reply.items((1,), "stop")

    path, tasks = str(tmp_path / "d.sock"), list[asyncio.Task[None]]()
    server = UnixServer(path, answer, signing("require", node="two"))
    await server.start()
    for sender in (signing("accept"), signing("off")):
        transport = UnixTransport(lambda work, _name: tasks.append(asyncio.create_task(work)), sender)  # type: ignore[arg-type,return-value]
        sink = Collector()
        transport.open(Instance(*ADDRESS, 1, {"unix": path}), Call("c", {}), sink)
        await sink.wait()
        await transport.close()
    await server.close()
    await asyncio.gather(*tasks)
    assert signers == ["one"]


@pytest.mark.parametrize("backend", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("reader", "source", "fits"),
    [
        ("accept", "require", True),
        ("off", "accept", True),
        ("off", "require", False),
        ("theirs", "require", False),
        (None, "require", False),
        ("accept", None, True),
    ],
)
async def test_block_sessions(backend: str, reader: str | None, source: str | None, fits: bool, tmp_path: Path) -> None:
    secret = THEIRS if reader == "theirs" else OURS
    mode: Any = "accept" if reader == "theirs" else reader
    blocks, place = some_blocks(3), Source(tmp_path)
    trusted: Any = source
    place.server = BlockServer(place.sessions, place.spawn, tmp_path, signing(trusted) if source else None)
    async with place:
        addresses = {backend: place.server.addresses[backend]}
        session = place.filled(blocks)
        own = signing(mode, secret, node="two") if reader else None
        reading = read(addresses, session.id, LAYOUT, 0, signing=own)
        if fits:
            assert await collect(reading) == blocks
        else:
            with pytest.raises(TransferError, match="does not trust the reader") as caught:
                await collect(reading)
            assert caught.value.kind == "failed"


def test_a_hello_is_read_by_the_last_release() -> None:
    class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
        version: int
        session: str
        layout: str
        first: int

    new = msgspec.msgpack.encode(frames.Hello(2, "s", "l", 3, b"signature"))
    assert msgspec.msgpack.decode(new, type=Hello) == Hello(2, "s", "l", 3)
    old = msgspec.msgpack.encode(Hello(2, "s", "l", 3))
    assert msgspec.msgpack.decode(old, type=frames.Hello) == frames.Hello(2, "s", "l", 3)
