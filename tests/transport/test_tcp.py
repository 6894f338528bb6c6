"""The TCP transport over real sockets: order, loss, credits, certificates, signatures, strangers, wrong settings."""

import asyncio
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.ingress import Accepted, Failed, Text, Tokens
from dynamod.message.worker import Call, Generate, Request
from dynamod.transport.base import Reply
from dynamod.transport.outbox import WINDOW
from dynamod.transport.signing import Signing
from dynamod.transport.tcp import TcpPeers
from dynamod.transport.tcp_settings import TcpSettings
from tests.discovery.test_etcd_secure import Authority
from tests.features.trust.conftest import THEIRS, signing

from .test_unix import ADDRESS, Collector, echo, read_to_the_end

HERE = {"DYNAMOD_TCP_ADDRESS": "127.0.0.1"}


class Pair:
    """A worker's side and an ingress's side, each with settings of its own."""

    def __init__(
        self, receive: Callable[[str, Request, Reply], None], there: Any = HERE, here: Any = HERE, *, sign: Any = None
    ) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.worker, self.ingress = (
            TcpPeers(self._settings(env), self._spawn, receive, signing)
            for env, signing in zip((there, here), sign or (Signing(), Signing()), strict=True)
        )

    def _settings(self, env: dict[str, str]) -> TcpSettings:
        found = TcpSettings.from_environment(env)
        assert found is not None
        return found

    def _spawn(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def open(self, request: Request) -> Collector:
        sink = Collector()
        self.ingress.open(Instance(*ADDRESS, 1, {"tcp": self.worker.address}), request, sink)
        return sink

    async def __aenter__(self) -> Self:
        await self.worker.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ingress.close()
        await self.worker.close()
        await asyncio.gather(*self.tasks)


def generate(number: int) -> Generate:
    return Generate(str(number), "m", tokens.pack(range(number, number + 9)))


async def whole(sink: Collector, number: int) -> None:
    await sink.wait()
    assert isinstance(sink.deltas[0], Accepted), sink.why
    ids = [i for delta in sink.deltas[1:] if isinstance(delta, Tokens) for i in tokens.unpack(delta.ids)]
    assert ids == list(range(number, number + 9))


async def test_answers_come_in_order_over_one_connection() -> None:
    async with Pair(echo) as pair:
        sinks = [pair.open(generate(number)) for number in range(20)]
        for number, sink in enumerate(sinks):
            await whole(sink, number)
        assert list(pair.ingress.inboxes()) == [pair.worker.address]
        assert len(pair.worker.outboxes()) == 1


async def test_a_slow_reader_holds_the_worker_back() -> None:
    replies: list[Reply] = []
    async with Pair(lambda _e, _r, reply: replies.append(reply)) as pair:
        sink = pair.open(Call("x"))
        while not replies:  # noqa: ASYNC110 - the worker has no event to wait for
            await asyncio.sleep(0.01)
        (end,) = pair.ingress._ends.values()
        transport: Any = end._transport
        transport.pause_reading()
        for _ in range(WINDOW * 3):
            replies[0].text("w", 1)
            await asyncio.sleep(0)
        (outbox,) = pair.worker.outboxes()
        assert (outbox.frames, outbox.credits) == (WINDOW, 0)
        assert outbox.waiting <= 2, "what waits is one text"
        transport.resume_reading()
        replies[0].text("", 0, "stop")
        await sink.wait()
        assert "".join(delta.text for delta in sink.deltas if isinstance(delta, Text)) == "w" * WINDOW * 3


async def test_a_worker_that_goes_is_lost_and_one_that_is_not_there_too() -> None:
    async with Pair(lambda _e, _r, reply: reply.accepted()) as pair:
        sink = pair.open(Call("x"))
        while not sink.deltas:  # noqa: ASYNC110 - until the acceptance is here
            await asyncio.sleep(0.01)
        await pair.worker.close()
        await sink.wait()
        assert sink.why == "connection to the worker lost"
        late = pair.open(Call("x"))
        await late.wait()
        assert "cannot connect to the worker at 127.0.0.1" in (late.why or "")


async def test_a_stranger_at_the_port_is_sent_away() -> None:
    async with Pair(echo) as pair:
        host, _, port = pair.worker.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(5):
            said = await reader.read()
        assert said.startswith(b"dynamod")
        assert pair.worker.outboxes() == []
        writer.close()


async def test_only_who_knows_the_secret_is_answered() -> None:
    async with Pair(echo, sign=(signing("require"), signing("require", node="two"))) as pair:
        await whole(pair.open(generate(3)), 3)
    async with Pair(echo, sign=(signing("require"), signing("require", THEIRS, node="two"))) as pair:
        sink = pair.open(generate(3))
        await sink.wait()
        (failed,) = sink.deltas
        assert isinstance(failed, Failed)
        assert "the worker does not take the request" in failed.message


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


def files(authority: Authority, name: str) -> dict[str, str]:
    cert, key = authority.issue(name)
    named = {"DYN_TCP_TLS_CA_CERT_PATH": authority.cert, "DYN_TCP_TLS_CERT_PATH": cert, "DYN_TCP_TLS_KEY_PATH": key}
    return HERE | {variable: str(path) for variable, path in named.items()}


@needs_openssl
async def test_both_ends_show_a_certificate_of_one_authority(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    own = files(ours, "one")
    async with Pair(echo, own, files(ours, "two")) as pair:
        await whole(pair.open(generate(5)), 5)
    for stranger in (files(other, "three"), HERE):
        async with Pair(echo, own, stranger) as pair:
            sink = pair.open(generate(5))
            await sink.wait()
            assert sink.why, "no answer without a certificate"
            assert sink.deltas == []


@needs_openssl
def test_certificates_that_no_peer_would_take_are_errors_of_the_start(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    good, foreign = files(ours, "one"), files(other, "two")
    with pytest.raises(UserError, match=r"DYN_TCP_TLS_CERT_PATH: no other node takes .*one.pem: "):
        TcpSettings.from_environment(good | {"DYN_TCP_TLS_CA_CERT_PATH": foreign["DYN_TCP_TLS_CA_CERT_PATH"]})
    with pytest.raises(UserError, match="DYN_TCP_TLS_CERT_PATH, DYN_TCP_TLS_KEY_PATH"):
        TcpSettings.from_environment(good | {"DYN_TCP_TLS_KEY_PATH": foreign["DYN_TCP_TLS_KEY_PATH"]})
    cert, key = ours.issue("old", days="-1")
    with pytest.raises(UserError, match="certificate has expired"):
        TcpSettings.from_environment(good | {"DYN_TCP_TLS_CERT_PATH": str(cert), "DYN_TCP_TLS_KEY_PATH": str(key)})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"DYNAMOD_TCP_ADDRESS": "worker-0"}, "DYNAMOD_TCP_ADDRESS is 'worker-0', which is no IP address"),
        ({"DYNAMOD_TCP_ADDRESS": "0.0.0.0"}, "reaches nothing"),
        ({**HERE, "DYNAMOD_TCP_LISTEN": "all"}, "DYNAMOD_TCP_LISTEN is 'all'"),
        ({**HERE, "DYNAMOD_TCP_PORTS": "9-1"}, "DYNAMOD_TCP_PORTS is '9-1'"),
        ({**HERE, "DYN_TCP_TLS_CA_CERT_PATH": __file__}, "DYN_TCP_TLS_CERT_PATH is not set"),
        ({**HERE, "DYN_TCP_TLS_CERT_PATH": __file__}, "DYN_TCP_TLS_KEY_PATH is not set"),
        ({**HERE, "DYN_TCP_TLS_CA_CERT_PATH": "/nowhere"}, "DYN_TCP_TLS_CA_CERT_PATH: cannot read"),
    ],
)
def test_wrong_settings_name_the_variable(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        TcpSettings.from_environment(environ)


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_while_the_worker_closes_is_closed(turns: int) -> None:
    async with Pair(echo) as pair:
        host, _, port = pair.worker.address.rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await pair.worker.close()
            await read_to_the_end(client)


async def test_ports_come_from_the_range() -> None:
    async with Pair(echo) as taken:
        port = taken.worker.address.rpartition(":")[2]
        with pytest.raises(UserError, match=f"127.0.0.1:{port}: Address already in use"):
            async with Pair(echo, {**HERE, "DYNAMOD_TCP_PORTS": port}):
                pass
    assert TcpSettings.from_environment({}) is None
