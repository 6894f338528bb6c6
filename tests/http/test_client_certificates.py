"""HTTPS that asks clients for certificates: who comes in, and what is said of who does not."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamod.message.errors import UserError
from dynamod.message.tls import TlsFiles, server_context
from tests.certificates import Certificates


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def trusting(ca: str, *shown: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if shown:
        context.load_cert_chain(*shown)
    return context


async def status(port: int, context: ssl.SSLContext) -> int:
    async with asyncio.timeout(5), aiohttp.ClientSession() as session:
        async with session.get(f"https://127.0.0.1:{port}/live", ssl=context) as answer:
            return answer.status


async def test_only_clients_with_a_certificate_come_in(
    serve: Any, ours: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = ours.issue("server")
    foreign = Certificates(tmp_path, "foreign")
    server = await serve(tls_cert_path=cert, tls_key_path=key, tls_client_ca_cert_path=ours.ca)
    good = trusting(ours.ca, *ours.issue("client", ()))
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        where = f"https://127.0.0.1:{server.port}/live"
        async with session.get(where, ssl=good) as answer:
            assert answer.status == 200
        strangers = {
            "none": trusting(ours.ca),
            "expired": trusting(ours.ca, *ours.issue("old", (), expired=True)),
            "foreign": trusting(ours.ca, *foreign.issue("client", ())),
        }
        for name, context in strangers.items():
            with pytest.raises(aiohttp.ClientError):
                await status(server.port, context)
            async with session.get(where, ssl=good) as answer:
                assert answer.status == 200, f"{name} cuts nobody else"
    (line,) = [record.getMessage() for record in caplog.records if "clients refused" in record.getMessage()]
    assert "tls_client_ca_cert_path" in line, "one line for all of them, within a minute"


async def test_the_certificate_of_another_name_is_refused_by_the_client(serve: Any, ours: Certificates) -> None:
    cert, key = ours.issue("server", ("elsewhere.example",))
    server = await serve(tls_cert_path=cert, tls_key_path=key)
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match=r"127\.0\.0\.1"):
        await status(server.port, trusting(ours.ca))


async def test_silent_clients_keep_nobody_out(serve: Any, ours: Certificates) -> None:
    cert, key = ours.issue("server")
    server = await serve(tls_cert_path=cert, tls_key_path=key, tls_client_ca_cert_path=ours.ca)
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
    assert await status(server.port, trusting(ours.ca, *ours.issue("client", ()))) == 200
    for _, writer in silent:
        writer.close()


def test_files_of_no_use_are_named(ours: Certificates, tmp_path: Path) -> None:
    cert, key = ours.issue("server")
    _, other = ours.issue("other")
    text = tmp_path / "text"
    text.write_text("no certificate")
    with pytest.raises(UserError) as mismatch:
        server_context(TlsFiles(cert, other))
    assert "the key of this certificate" in mismatch.value.line()
    assert other in mismatch.value.line()
    for ca in (str(text), str(tmp_path / "nowhere")):
        with pytest.raises(UserError, match=r"cannot use the TLS file|holds no certificate") as caught:
            server_context(TlsFiles(cert, key, ca))
        assert ca in caught.value.line()


async def test_authorities_without_tls_are_refused(serve: Any, ours: Certificates) -> None:
    with pytest.raises(UserError, match="tls_client_ca_cert_path"):
        await serve(tls_client_ca_cert_path=ours.ca)


@pytest.fixture(autouse=True)
def _logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dynamod.frontend")
