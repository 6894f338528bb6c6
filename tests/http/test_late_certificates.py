"""An ingress reads the system's certificates with its first TLS connection: afterwards all is as aiohttp has it."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificates

CLIENT = """
import asyncio, sys
import dynamod.http.late_certificates
import aiohttp
from aiohttp import connector
known = connector._SSL_CONTEXT_VERIFIED
assert not super(type(known), known).cert_store_stats()["x509"], "none is read yet"
async def main():
    async with aiohttp.ClientSession() as session:
        for ssl in (True, True, False):
            try:
                async with session.get(sys.argv[1], ssl=ssl) as answer:
                    print(answer.status)
            except aiohttp.ClientConnectorCertificateError:
                print("refused")
if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
print(known.cert_store_stats()["x509"], len(known.get_ca_certs()))
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("known", "says"), [(True, ["200", "200", "200"]), (False, ["refused", "refused", "200"])])
async def test_a_server_is_known_by_the_system_s_certificates(
    serve: Any, tmp_path: Path, loop: str, known: bool, says: list[str]
) -> None:
    ours = Certificates(tmp_path)
    cert, key = ours.issue("server")
    server = await serve(tls_cert_path=cert, tls_key_path=key)
    ca = ours.ca if known else Certificates(tmp_path, "foreign").ca
    command = [sys.executable, "-c", CLIENT, f"https://127.0.0.1:{server.port}/live", loop]
    env = {"SSL_CERT_FILE": ca, "SSL_CERT_DIR": str(tmp_path / "none")}
    done = await asyncio.to_thread(
        subprocess.run, command, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split() == [*says, "1", "1"]


def test_other_contexts_are_made_as_ever() -> None:
    script = """
import ssl
before = {name: getattr(ssl.SSLContext, name) for name in ("load_default_certs", "set_default_verify_paths")}
import dynamod.http.late_certificates
assert before == {name: getattr(ssl.SSLContext, name) for name in before}
assert "set_default_verify_paths" not in vars(ssl.SSLContext)
assert type(ssl.create_default_context()) is ssl.SSLContext
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
