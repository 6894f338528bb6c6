"""What answers on a port while no ingress lives."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from dynamod.daemon import stand_in as module
from dynamod.daemon.changes import Changes
from dynamod.daemon.sockets import listen, tls_files, url_of
from dynamod.message.tls import TlsFiles


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(
        [*words, "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return TlsFiles(str(cert), str(key))


@pytest.mark.parametrize("secure", [False, True])
async def test_it_answers_as_the_port_would(secure: bool, files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY", 0.1)
    monkeypatch.setattr(module, "LOOK", 0.02)
    (sock,) = listen(("127.0.0.1",), 0, "Frontend")
    served = [True]
    answering = asyncio.create_task(module.StandIn(lambda: [(sock, served[0], files if secure else None)], []).run())
    try:
        await asyncio.sleep(0.2)
        served[0] = False
        context = ssl.create_default_context(cafile=files[0]) if secure else None
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(
                *sock.getsockname(), ssl=context, server_hostname="localhost" if secure else None
            )
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"no_ingress"' in answer
        writer.close()
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        sock.close()


async def test_it_takes_no_connection_of_an_ingress_that_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY", 0.0)
    monkeypatch.setattr(module, "LOOK", 0.01)
    (sock,) = listen(("127.0.0.1",), 0, "Frontend")
    served = [False]
    changes = Changes()
    answering = asyncio.create_task(module.StandIn(lambda: [(sock, served[0], None)], changes.waiters).run())
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
            monkeypatch.setattr(module, "LOOK", 1000.0)
            await asyncio.sleep(0.05)  # it does not look any more
            served[0] = True
            changes.notify()
            for _ in range(8):
                with socket.create_connection(sock.getsockname()) as client:
                    ours, _ = await asyncio.get_running_loop().sock_accept(sock)
                    assert ours.getpeername() == client.getsockname()
                    ours.close()
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        sock.close()


def test_the_url_says_how_it_is_served() -> None:
    config = {"port": 1, "tls-cert-path": "/c", "tls_key_path": "/k"}
    assert tls_files([{}, config]) == TlsFiles("/c", "/k")
    assert tls_files([{"port": 1}]) is None
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert url_of((sock,), "https") == f"https://127.0.0.1:{sock.getsockname()[1]}"
