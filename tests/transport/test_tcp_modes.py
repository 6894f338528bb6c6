"""The modes of TLS between nodes over real sockets, and lists of revoked certificates."""

import asyncio
import contextlib
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.ingress import Text
from dynamod.message.worker import Call
from dynamod.transport import either, tcp
from dynamod.transport.base import Reply
from dynamod.transport.tcp_settings import TcpSettings
from dynamod.transport.tls import PeerTls
from tests.certificates import Certificates

from .test_tcp import HERE, Pair, generate, whole
from .test_unix import ADDRESS, Collector, echo

OFF, ACCEPT, REQUIRE = ({"DYNAMOD_TCP_TLS": mode} for mode in ("off", "accept", "require"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def node(ours: Certificates, name: str, **more: str) -> dict[str, str]:
    cert, key = ours.issue(name)
    files = {"DYN_TCP_TLS_CA_CERT_PATH": ours.ca, "DYN_TCP_TLS_CERT_PATH": cert, "DYN_TCP_TLS_KEY_PATH": key}
    return HERE | files | more


class Known(Pair):
    """A pair whose ingress knows what the worker says of itself."""

    def open(self, request: Any) -> Collector:
        sink = Collector()
        self.ingress.open(Instance(*ADDRESS, 1, self.worker.places), request, sink)
        return sink

    @property
    def secure(self) -> bool:
        """Whether the connection that is open has TLS."""
        (end,) = self.ingress._ends.values()
        return end._transport.get_extra_info("sslcontext") is not None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("there", "here", "way"),
    [
        ("off", "off", "plain"),
        ("off", "accept", "plain"),
        ("accept", "off", "plain"),
        ("accept", "accept", "tls"),
        ("accept", "require", "tls"),
        ("require", "accept", "tls"),
        ("require", "require", "tls"),
        ("require", "off", ""),
        ("off", "require", ""),
    ],
)
async def test_nodes_of_neighbouring_modes_reach_each_other(
    there: str, here: str, way: str, ours: Certificates
) -> None:
    modes = [node(ours, name, DYNAMOD_TCP_TLS=mode) for name, mode in (("one", there), ("two", here))]
    async with Known(echo, *modes) as pair:
        sink = pair.open(generate(5))
        if not way:
            await sink.wait()
            assert sink.why, "no answer"
            assert sink.deltas == []
            return
        await whole(sink, 5)
        assert pair.secure == (way == "tls")


async def test_a_stream_in_the_clear_goes_on_while_others_come_with_tls(ours: Certificates) -> None:
    replies: list[Reply] = []

    def receive(_endpoint: str, _request: Any, reply: Reply) -> None:
        replies.append(reply)

    worker = node(ours, "one", **ACCEPT)
    async with Known(receive, worker, node(ours, "two", **OFF)) as pair:
        old = pair.open(Call("x"))
        other = Known(receive, worker, node(ours, "three", **REQUIRE))
        other.worker = pair.worker
        new = other.open(Call("x"))
        async with asyncio.timeout(5):
            while len(replies) < 2:  # noqa: ASYNC110 - the worker has no event to wait for
                await asyncio.sleep(0.01)
        for number in range(20):
            for reply in replies:
                reply.text(f"{number} ", 1)
            await asyncio.sleep(0)
        for reply in replies:
            reply.text("", 0, "stop")
        for sink, secure, its in ((old, False, pair), (new, True, other)):
            await sink.wait()
            text = "".join(delta.text for delta in sink.deltas if isinstance(delta, Text))
            assert text == "".join(f"{number} " for number in range(20)), sink.why
            assert its.secure == secure
        await other.ingress.close()
        await asyncio.gather(*other.tasks)


async def test_silent_and_slow_connections_at_a_port_for_both(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "CONNECT_TIMEOUT", 0.5)
    async with Known(echo, node(ours, "one", **ACCEPT), node(ours, "two", **REQUIRE)) as pair:
        host, _, port = pair.worker.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16")  # TLS, or a frame of 22 bytes
        await whole(pair.open(generate(5)), 5)
        async with asyncio.timeout(5):
            for one, _ in silent:
                assert await one.read() == b""
            with contextlib.suppress(ConnectionResetError):  # what it sent was not read
                assert await reader.read() == b""
        for _, each in [*silent, (reader, writer)]:
            each.close()


def test_first_bytes() -> None:
    assert either.is_tls(b"\x16\x03\x01")
    assert either.is_tls(b"\x16\x03\x03")
    assert not either.is_tls(b"\x16\x03\x00"), "a frame of 790 bytes"
    assert not either.is_tls(b"\x16\x00\x00"), "a frame of 22 bytes"
    assert not either.is_tls(b"dyn")
    assert not either.is_tls(b"\x16")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"DYNAMOD_TCP_TLS": "on"}, "DYNAMOD_TCP_TLS is 'on'"),
        ({"DYNAMOD_TCP_TLS_CRL": "/nowhere"}, "DYNAMOD_TCP_TLS_CRL: cannot read /nowhere"),
        ({"DYNAMOD_TCP_TLS_CRL": __file__}, "DYNAMOD_TCP_TLS_CRL: .* holds no list"),
    ],
)
def test_wrong_settings_name_the_variable(more: dict[str, str], says: str, ours: Certificates) -> None:
    for read in (TcpSettings.from_environment, PeerTls.from_environment):
        with pytest.raises(UserError, match=says):
            read(node(ours, "one") | more)


def test_a_mode_without_certificates_is_refused() -> None:
    for read in (TcpSettings.from_environment, PeerTls.from_environment):
        with pytest.raises(UserError, match="DYNAMOD_TCP_TLS=accept needs certificates"):
            read(HERE | ACCEPT)
        read(HERE | OFF)


def test_certificates_in_the_list_of_revoked_ones_are_not_trusted_by_it(ours: Certificates) -> None:
    with pytest.raises(UserError, match=r"DYNAMOD_TCP_TLS_CRL: .* holds certificates"):
        TcpSettings.from_environment(node(ours, "one", DYNAMOD_TCP_TLS_CRL=ours.ca))


async def test_a_revoked_certificate_is_refused_at_both_ends_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Certificates(tmp_path)
    listed = {"DYNAMOD_TCP_TLS_CRL": str(ours.revoke(age=timedelta(minutes=2)))}
    good, lost = node(ours, "good", **listed), node(ours, "lost", **listed)
    async with Known(echo, good, lost) as into, Known(echo, lost, good) as out:
        for pair in (into, out):
            await whole(pair.open(generate(5)), 5)
            await pair.ingress.close()
        ours.revoke(lost["DYN_TCP_TLS_CERT_PATH"], age=timedelta(minutes=1))
        caplog.clear()
        for pair in (into, out):
            sink = pair.open(generate(6))
            await sink.wait()
            assert sink.why
            assert sink.deltas == []
        assert "certificate revoked" in caplog.text, "the node that connects is told why"
        assert "closed the connection before its greeting; check that the worker accepts the certificate" in caplog.text
        with caplog.at_level(logging.ERROR):
            (tmp_path / "revoked.pem").write_text("damaged")
            sink = out.open(generate(6))
            await sink.wait()
            assert sink.deltas == [], "the list before stays"
        assert "the list before stays" in caplog.text
    ours.revoke(lost["DYN_TCP_TLS_CERT_PATH"])
    with pytest.raises(UserError, match=r"no other node takes .*lost.pem: certificate revoked"):
        TcpSettings.from_environment(lost)


async def test_a_list_of_another_authority_or_that_has_expired_is_an_error_of_the_start(tmp_path: Path) -> None:
    ours, other = Certificates(tmp_path / "ours"), Certificates(tmp_path / "other")
    own = node(ours, "one")
    old = ours.revoke(age=timedelta(days=5000))
    for list_of, says in ((other.revoke(), "unable to get certificate CRL"), (old, "CRL has expired")):
        with pytest.raises(UserError, match=says) as caught:
            TcpSettings.from_environment(own | {"DYNAMOD_TCP_TLS_CRL": str(list_of)})
        assert "DYNAMOD_TCP_TLS_CRL" in caught.value.hint


def test_a_further_certificate_is_revoked_with_those_before(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    first, second = node(ours, "first"), node(ours, "second")
    before = ours.revoke(first["DYN_TCP_TLS_CERT_PATH"]).read_bytes()
    listed = {"DYNAMOD_TCP_TLS_CRL": str(ours.revoke(second["DYN_TCP_TLS_CERT_PATH"], before=before))}
    for one in (first, second):
        with pytest.raises(UserError, match="certificate revoked"):
            TcpSettings.from_environment(one | listed)
    assert TcpSettings.from_environment(node(ours, "third", **listed)) is not None
