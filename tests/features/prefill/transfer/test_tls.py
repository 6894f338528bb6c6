"""Blocks over TLS: certificates of both ends, good ones and each kind of bad one."""

import asyncio
import dataclasses
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from dynamod.features.prefill.transfer import tcp
from dynamod.features.prefill.transfer.base import TransferError
from dynamod.features.prefill.transfer.reader import read
from dynamod.features.prefill.transfer.server import BlockServer
from dynamod.features.trust.secret import TrustSettings, settings
from dynamod.features.trust.signer import TrustSigner
from dynamod.message.errors import UserError
from dynamod.transport.signing import Signing
from dynamod.transport.tls import PeerTls
from tests.certificates import Certificates
from tests.ports import free_port

from .places import LAYOUT, Source, collect, peer_tls, some_blocks, tls_of, until

BLOCKS = some_blocks(20)
SECRET = "0123456789abcdefghijklmnopqrstuv"


def strangers(folder: Path) -> dict[str, PeerTls]:
    """Readers that may not come in."""
    foreign, ours = Certificates(folder / "foreign"), peer_tls()
    cert, key = foreign.issue("node")
    return {
        "foreign": PeerTls(ours.ca, Path(cert), Path(key)),  # it trusts the source, which does not trust it
        "trusts others": PeerTls(Path(foreign.ca), ours.cert, ours.key),
    }


async def why(source: Source, tls: PeerTls | None, session: str) -> str:
    begun = time.monotonic()
    addresses = source.secure.addresses if tls is not None else source.server.addresses
    with pytest.raises(TransferError) as caught:
        await collect(read(addresses, session, LAYOUT, 0, tls=tls))
    assert time.monotonic() - begun < 8
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_strangers_are_told_and_nobody_else_is_cut(tmp_path: Path) -> None:
    async with Source(None) as source:
        assert list(source.secure.addresses) == ["tls"]
        session = source.sessions.open()
        following = source.reading("tls", session.id)
        session.put(BLOCKS[0].name, BLOCKS[0].data)
        assert await anext(following) == BLOCKS[0]
        for name, tls in strangers(tmp_path).items():
            told = await why(source, tls, source.filled(BLOCKS).id)
            assert ("DYN_TCP_TLS_CERT_PATH" if name == "foreign" else "DYN_TCP_TLS_CA_CERT_PATH") in told, told
        for block in BLOCKS[1:]:
            session.put(block.name, block.data)
        session.finish()
        assert await collect(following) == BLOCKS[1:]


async def test_expired_certificates_of_either_end_are_refused(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    good, old = tls_of(ours), tls_of(ours, expired=True)
    for served, reader in ((good, old), (old, good)):
        # both have the same file names: the contexts are made before the other one is written
        async with Other(ours.issue("a", expired=served is old), ours) as source:
            cert, key = ours.issue("b", expired=reader is old)
            told = await source.refused(PeerTls(Path(ours.ca), Path(cert), Path(key)))
            assert served is not old or "expired" in told, told


async def test_a_certificate_for_another_address_is_refused_unless_named(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    async with Other(ours.issue("far", ("far.example",)), ours) as source:
        cert, key = ours.issue("reader")
        told = await source.refused(PeerTls(Path(ours.ca), Path(cert), Path(key)))
        assert "127.0.0.1" in told
        assert "DYN_TCP_TLS_CERT_PATH" in told
        named = PeerTls(Path(ours.ca), Path(cert), Path(key), "far.example")
        assert await source.read(named) == BLOCKS


async def test_a_reader_without_tls_is_told_what_to_set() -> None:
    async with Source(None) as source:
        session = source.filled(BLOCKS)
        with pytest.raises(TransferError, match="the source wants TLS: set DYN_TCP_TLS_CA_CERT_PATH"):
            await collect(read(source.secure.addresses, session.id, LAYOUT, 0))
        with pytest.raises(TransferError, match="the source has no TLS: set DYN_TCP_TLS_CA_CERT_PATH"):
            await collect(read({"tcp": source.server.addresses["tcp"]}, session.id, LAYOUT, 0, tls=peer_tls()))
        assert await collect(source.reading("tls", session.id)) == BLOCKS


async def test_a_silent_connection_ends_and_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.3)
    async with Source(None) as source:
        host, _, port = source.secure.addresses["tls"].rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        assert await collect(source.reading("tls", source.filled(BLOCKS).id)) == BLOCKS
        async with asyncio.timeout(5):
            assert [await reader.read() for reader, _ in silent] == [b""] * 20
        for _, writer in silent:
            writer.close()


async def test_a_clear_reader_at_a_port_with_tls_gets_nothing() -> None:
    async with Source(None) as source:
        session = source.filled(BLOCKS)
        with pytest.raises(TransferError):
            await collect(read({"tcp": source.secure.addresses["tls"]}, session.id, LAYOUT, 0, stall=1.0))
        assert await collect(source.reading("tls", session.id)) == BLOCKS


async def test_certificates_and_the_cluster_secret_together() -> None:
    def signing(secret: str) -> Signing:
        known: TrustSettings = settings({"DYNAMOD_CLUSTER_SECRET": f"{secret}{SECRET}", "DYNAMOD_TRUST": "require"})
        made = Signing()
        made.use(TrustSigner("one", known))
        return made

    async with Source(None) as source:
        source.secure._ends._signing = signing("a")
        session = source.filled(BLOCKS)
        for other in (signing("b"), None):
            with pytest.raises(TransferError, match="does not trust the reader"):
                await collect(source.reading("tls", session.id, signing=other))
        assert await collect(source.reading("tls", session.id, signing=signing("a"))) == BLOCKS


def test_variables_are_all_set_or_none(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    cert, key = ours.issue("node")
    _, other = ours.issue("other")
    every = {
        "DYN_TCP_TLS_CA_CERT_PATH": ours.ca,
        "DYN_TCP_TLS_CERT_PATH": cert,
        "DYN_TCP_TLS_KEY_PATH": key,
    }
    assert PeerTls.from_environment({}) is None
    found = PeerTls.from_environment(every)
    assert found == PeerTls(Path(ours.ca), Path(cert), Path(key))
    for name in every:
        with pytest.raises(UserError, match=name):
            PeerTls.from_environment({**every, name: ""})
        with pytest.raises(UserError, match=f"{name}: cannot read"):
            PeerTls.from_environment({**every, name: str(tmp_path / "nowhere")})
    with pytest.raises(UserError, match=r"cannot use the TLS files .*other"):
        PeerTls.from_environment({**every, "DYN_TCP_TLS_KEY_PATH": other})


@pytest.mark.parametrize("fixed", [False, True])
async def test_a_source_that_accepts_both_serves_readers_with_and_without(fixed: bool, tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    port = free_port() if fixed else 0
    async with Other(ours.issue("a"), ours, accept=True, port=port) as source:
        addresses = source.server.addresses
        assert list(addresses) == ["tls", "tcp"]
        assert addresses["tls"] == addresses["tcp"], "at one port"
        session = source.source.sessions.open()
        old = read({"tcp": addresses["tcp"]}, session.id, LAYOUT, 0)
        session.put(BLOCKS[0].name, BLOCKS[0].data)
        assert await anext(old) == BLOCKS[0]
        cert, key = map(Path, ours.issue("b"))
        ways = []
        for reader in (PeerTls(Path(ours.ca), cert, key), PeerTls(Path(ours.ca), cert, key, accept=True), None):
            known = source.server._ends.copy()
            blocks = read(addresses, source.source.filled(BLOCKS).id, LAYOUT, 0, tls=reader)
            assert await anext(blocks) == BLOCKS[0]
            (end,) = source.server._ends - known
            ways.append(end.transport.get_extra_info("sslcontext") is not None)  # type: ignore[union-attr]
            assert await collect(blocks) == BLOCKS[1:]
        assert ways == [True, True, False]
        for block in BLOCKS[1:]:
            session.put(block.name, block.data)
        session.finish()
        assert await collect(old) == BLOCKS[1:], "the open stream without TLS ends complete"


async def test_a_reader_that_accepts_both_reads_from_a_source_in_the_clear() -> None:
    async with Source(None) as source:
        accepting = dataclasses.replace(peer_tls(), accept=True)
        clear = {"tcp": source.server.addresses["tcp"]}
        assert await collect(read(clear, source.filled(BLOCKS).id, LAYOUT, 0, tls=accepting)) == BLOCKS


async def test_revoked_certificates_of_either_end_are_refused_at_once(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    good, lost = ours.issue("good"), ours.issue("lost")
    for served, reader in ((good, lost), (lost, good)):
        cert, key = map(Path, reader)
        listed = ours.revoke(age=timedelta(minutes=2))
        tls = PeerTls(Path(ours.ca), cert, key, revoked=listed)
        async with Other(served, ours, revoked=listed) as source:
            assert await source.read(tls) == BLOCKS
            ours.revoke(lost[0], age=timedelta(minutes=1))
            told = await source.refused(tls)
            assert served is good or ("revoked" in told and "DYNAMOD_TCP_TLS_CRL" in told), told


class Other:
    """A source with a certificate of its own."""

    def __init__(self, files: tuple[str, str], ours: Certificates, *, port: int = 0, **options: Any) -> None:
        self.source, self.port = Source(None), port
        tls = PeerTls(Path(ours.ca), *map(Path, files), **options)
        self.server = BlockServer(self.source.sessions, self.source.spawn, None, tls=tls)

    async def __aenter__(self) -> Self:
        await self.source.__aenter__()
        await self.server.start("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()
        await self.source.__aexit__(*error)

    async def read(self, tls: PeerTls) -> Any:
        return await collect(read(self.server.addresses, self.source.filled(BLOCKS).id, LAYOUT, 0, tls=tls))

    async def refused(self, tls: PeerTls) -> str:
        with pytest.raises(TransferError) as caught:
            await self.read(tls)
        await until(lambda: not self.server._ends)
        return str(caught.value)
