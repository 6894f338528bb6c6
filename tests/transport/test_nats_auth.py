"""Credentials and TLS against real servers, and what is said when they are wrong."""

import asyncio
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dynamod.transport.nats.connection import NatsConnection
from dynamod.transport.nats.settings import NatsSettings
from dynamod.transport.nats.transport import NatsServer, NatsTransport

from .nats_servers import Collector, House, echo, serving


class Alone:
    """A connection made from an environment."""

    def __init__(self, url: str, env: Mapping[str, str]) -> None:
        settings = NatsSettings.from_environment({"NATS_SERVER": url, **env})
        assert settings is not None
        self.settings = replace(settings, patience=0.2)
        self.tasks: list[asyncio.Task[None]] = []
        self.connection = NatsConnection(
            self.settings, lambda work, name: self.tasks.append(asyncio.get_running_loop().create_task(work))
        )

    async def connects(self, timeout: float) -> bool:
        """Whether it gets a connection that mail goes over."""
        self.connection.start()
        try:
            if not await self.connection.ready(timeout):
                return False
            house = House(self.settings.servers[0], echo)
            house.ingress = house.worker = self.connection
            house.server = NatsServer(self.connection, house.subject, echo)
            house.transport = NatsTransport(self.connection)
            await house.server.start()
            answer: Collector = await house.ask([1, 2])
            await house.transport.close()
            await house.server.close()
            return answer.ids == [1, 2]
        finally:
            await self.connection.close()
            async with asyncio.timeout(5):
                await asyncio.gather(*self.tasks)


async def refused(alone: Alone, caplog: pytest.LogCaptureFixture, timeout: float = 0.7) -> list[str]:
    """What is logged while it does not connect."""
    caplog.clear()
    assert not await alone.connects(timeout)
    return caplog.messages


async def test_user_and_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, "--user", "me", "--pass", "p@ss") as server:
        right = {"NATS_AUTH_USERNAME": "me", "NATS_AUTH_PASSWORD": "p@ss"}
        assert await Alone(server.url, right).connects(5)
        assert await Alone(server.url.replace("//", "//me:p%40ss@"), {}).connects(5)
        wrong = Alone(server.url, {**right, "NATS_AUTH_PASSWORD": "precious"})
        assert await refused(wrong, caplog, 1.2) == [
            f"NATS at {server.url} refuses the credentials of NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD"
        ]
        assert server._log.read_text().count("authentication error") <= 2, "it does not hammer the server"
        assert await refused(Alone(server.url, {}), caplog) == [
            f"NATS at {server.url} wants credentials: set NATS_AUTH_USERNAME and others"
        ]


async def test_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, "--auth", "secret") as server:
        assert await Alone(server.url, {"NATS_AUTH_TOKEN": "secret"}).connects(5)
        wrong = Alone(server.url, {"NATS_AUTH_TOKEN": "precious"})
        assert await refused(wrong, caplog) == [f"NATS at {server.url} refuses the credentials of NATS_AUTH_TOKEN"]


async def test_nkey(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nkeys = pytest.importorskip("nkeys")
    import base64

    def seed(fill: int) -> str:
        """A user's seed: two prefix bytes, 32 bytes of key, a checksum."""
        raw = bytes([(18 << 3) | (20 << 3) >> 5, ((20 << 3) & 31) << 3]) + bytes([fill] * 32)
        return base64.b32encode(raw + nkeys.crc16(raw).to_bytes(2, "little")).decode().rstrip("=")

    public = nkeys.from_seed(bytearray(seed(1).encode())).public_key.decode()
    config = tmp_path / "nats.conf"
    config.write_text(f"authorization: {{ users: [ {{ nkey: {public} }} ] }}\n")
    with serving(tmp_path, "-c", str(config)) as server:
        assert await Alone(server.url, {"NATS_AUTH_NKEY": seed(1)}).connects(5)
        (line,) = await refused(Alone(server.url, {"NATS_AUTH_NKEY": seed(2)}), caplog)
        assert line == f"NATS at {server.url} refuses the credentials of NATS_AUTH_NKEY"


async def test_a_subject_that_the_user_may_not_use_is_said_and_lost_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(
        'authorization: { users: [ { user: "me", password: "me", permissions: '
        '{ publish: "_INBOX.>", subscribe: ">" } } ] }\n'
    )
    with serving(tmp_path, "-c", str(config)) as server:
        house = House(server.url, echo, username="me", password="me", alive=0.2, silence=0.6)
        async with house:
            sink, _ = house.open()
            await sink.wait()
            assert "nothing has come" in str(sink.why)
        assert any("permissions violation for publish" in line.lower() for line in caplog.messages)


def certificates(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    cert, key = folder / "cert.pem", folder / "key.pem"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = [*new, "-days", "2", *name, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


async def test_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = certificates(tmp_path)
    tls = ["--tls", "--tlscert", str(cert), "--tlskey", str(key)]
    with serving(tmp_path, *tls, "--tlsverify", "--tlscacert", str(cert)) as server:
        own = {"NATS_TLS_CA": str(cert), "NATS_TLS_CERT": str(cert), "NATS_TLS_KEY": str(key)}
        assert await Alone(server.url, own).connects(5)
        stranger = {"NATS_TLS_CERT": str(cert), "NATS_TLS_KEY": str(key)}
        lines = await refused(Alone(server.url, stranger), caplog)
        assert any("cannot be reached" in line and "certificate verify failed" in line for line in lines)


async def test_a_secret_is_not_sent_in_clear_when_tls_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, "--auth", "secret", "-DV") as server:
        url = server.url.replace("nats://", "tls://")
        lines = await refused(Alone(url, {"NATS_AUTH_TOKEN": "secret"}), caplog)
        assert any("the server offers no TLS" in line for line in lines)
        assert "CONNECT" not in server._log.read_text()
