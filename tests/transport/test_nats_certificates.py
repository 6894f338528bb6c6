"""A server that wants a certificate: who has none is told so in few lines."""

from pathlib import Path

import pytest

from dynamod.transport.nats import client as nats_client

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
