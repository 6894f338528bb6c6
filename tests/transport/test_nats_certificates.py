"""A server that wants a certificate: who has none, or a bad one, is told so in few lines."""

import time
from pathlib import Path

import pytest

from dynamod.message.errors import UserError
from dynamod.transport.nats import client as nats_client
from dynamod.transport.nats.settings import NatsSettings
from tests.certificates import Certificates

from .nats_servers import serving
from .test_nats_auth import Alone, certificates, refused


async def test_who_has_no_certificate_is_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = certificates(tmp_path)
    with serving(
        tmp_path, *("--tls", "--tlscert", str(cert), "--tlskey", str(key)), "--tlsverify", "--tlscacert", str(cert)
    ) as server:
        lines = await refused(Alone(server.url, {"NATS_TLS_CA": str(cert)}), caplog, timeout=3)
    asked = [line for line in lines if "check NATS_TLS_CA, NATS_TLS_CERT and NATS_TLS_KEY" in line]
    assert len(asked) == 1, lines
    assert len(lines) <= 2, "only what came before the reason was known"


def test_what_cuts_a_connection_is_known() -> None:
    assert nats_client.cut_off(ConnectionResetError(104, "reset"))
    assert nats_client.cut_off(BrokenPipeError(32, "Broken pipe"))
    assert nats_client.cut_off(ConnectionError("Connection lost"))
    assert not nats_client.cut_off(ConnectionRefusedError(111, "refused"))
    assert not nats_client.cut_off(ConnectionRefusedError("the server offers no TLS"))


CHECK = "check NATS_TLS_CA, NATS_TLS_CERT and NATS_TLS_KEY"


def shown(ca: str, files: tuple[str, str]) -> dict[str, str]:
    return {"NATS_TLS_CA": ca, "NATS_TLS_CERT": files[0], "NATS_TLS_KEY": files[1]}


def flags(ours: Certificates, files: tuple[str, str]) -> tuple[str, ...]:
    return ("--tls", "--tlscert", files[0], "--tlskey", files[1], "--tlsverify", "--tlscacert", ours.ca)


@pytest.mark.parametrize("bad", ["expired", "foreign"])
async def test_a_bad_certificate_is_told_and_cuts_nobody(
    bad: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, foreign = Certificates(tmp_path), Certificates(tmp_path, "foreign")
    files = ours.issue("bad", expired=True) if bad == "expired" else foreign.issue("bad")
    with serving(tmp_path, *flags(ours, ours.issue("server"))) as server:
        good = shown(ours.ca, ours.issue("good"))
        member = Alone(server.url, good)
        member.connection.start()
        assert await member.connection.ready(5)
        begun = time.monotonic()
        lines = await refused(Alone(server.url, shown(ours.ca, files)), caplog, timeout=2)
        assert time.monotonic() - begun < 5
        assert any(CHECK in line for line in lines), lines
        assert len(lines) <= 2, lines
        assert member.connection.keeper.connects == 1, "nobody else is cut"
        assert member.connection.connected
        await member.connection.close()


@pytest.mark.parametrize("bad", ["expired", "foreign", "another name"])
async def test_a_server_with_a_bad_certificate_is_not_spoken_to(
    bad: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, foreign = Certificates(tmp_path), Certificates(tmp_path, "foreign")
    files = {
        "expired": lambda: ours.issue("server", expired=True),
        "foreign": lambda: foreign.issue("server"),
        "another name": lambda: ours.issue("server", ("elsewhere.example",)),
    }[bad]()
    with serving(tmp_path, *flags(ours, files)) as server:
        lines = await refused(Alone(server.url, shown(ours.ca, ours.issue("good"))), caplog, timeout=1)
        assert any(CHECK in line and "certificate verify failed" in line for line in lines), lines


async def test_a_certificate_without_a_user_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = Certificates(tmp_path)
    cert, key = ours.issue("server")
    config = tmp_path / "nats.conf"
    config.write_text(
        f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ours.ca}", verify_and_map: true }}\n'
        'authorization { users: [ { user: "CN=node,O=dynamod" } ] }\n'
    )
    with serving(tmp_path, "-c", str(config)) as server:
        assert await Alone(server.url, shown(ours.ca, ours.issue("node", ()))).connects(5)
        lines = await refused(Alone(server.url, shown(ours.ca, ours.issue("stranger", ()))), caplog)
        told = [line for line in lines if line.startswith("NATS at ")]
        assert "has no user for the certificate NATS_TLS_CERT" in told[-1], lines


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    mixed = ours.issue("one")[0], ours.issue("two")[1]
    settings = NatsSettings.from_environment({"NATS_SERVER": "tls://127.0.0.1:1", **shown(ours.ca, mixed)})
    assert settings is not None
    with pytest.raises(UserError, match="NATS_TLS_CERT and NATS_TLS_KEY do not belong together"):
        settings.tls_context()
