"""`dynamo infra up --secure` against the real servers: who comes in, and what stays."""

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from dynamod.discovery.etcd.client import connect
from dynamod.discovery.etcd.errors import EtcdError
from dynamod.discovery.etcd.settings import EtcdSettings
from dynamod.features.infra import brokers as infra
from dynamod.features.infra.authority import Authority
from dynamod.features.infra.secure import NODE, Secure
from dynamod.message.errors import UserError
from dynamod.transport.nats.settings import NatsSettings
from dynamod.transport.tcp_settings import TcpSettings
from dynamod.transport.tls import PeerTls
from tests.certificates import Certificates
from tests.ports import free_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("secure") / "infra"
    yield path
    infra.down(path)


@pytest.fixture(scope="module")
def env(folder: Path) -> dict[str, str]:
    return infra.environment(infra.up(folder, nats_port=free_port(), etcd_port=free_port(), secure=True))


def shown(env: dict[str, str], cert: str, key: str) -> dict[str, str]:
    """The variables of a client with another certificate."""
    names = {"NATS_TLS_CERT": cert, "NATS_TLS_KEY": key, "ETCD_AUTH_CLIENT_CERT": cert, "ETCD_AUTH_CLIENT_KEY": key}
    return {**env, **names}


async def etcd_takes(env: dict[str, str], key: str = "v1/x") -> None:
    settings = EtcdSettings.from_environment(env)
    assert settings is not None
    async with asyncio.timeout(8), connect(settings.endpoints[0], settings) as client:
        await client.snapshot(key)


@contextlib.asynccontextmanager
async def at_nats(env: dict[str, str], context: ssl.SSLContext | None = None) -> Any:
    settings = NatsSettings.from_environment(env)
    assert settings is not None
    errors: list[Exception] = []

    async def told(error: Exception) -> None:
        errors.append(error)

    options = {"allow_reconnect": False, "connect_timeout": 3, "error_cb": told, "max_reconnect_attempts": 0}
    async with asyncio.timeout(8):
        client = await nats.connect(settings.servers[0], tls=context or settings.tls_context(), **options)
    try:
        yield client, errors
    finally:
        await client.close()


async def test_a_node_comes_in_and_has_the_rights_of_a_node(env: dict[str, str]) -> None:
    await etcd_takes(env)
    for key in ("other/", "v0/"):
        with pytest.raises(EtcdError, match="permission denied"):
            await etcd_takes(env, key)
    async with at_nats(env) as (client, errors):
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(message: Any) -> None:
            got.put_nowait(message.data)

        await client.subscribe("dynamo_backend.generate-1", cb=take)
        await client.publish("dynamo_backend.generate-1", b"hello")
        async with asyncio.timeout(5):
            assert await got.get() == b"hello"
        for subject in ("$SYS.REQ.SERVER.PING", "one.two.three", "alone"):
            errors.clear()
            await client.publish(subject, b"")
            await client.flush(timeout=5)
            await asyncio.sleep(0.1)
            assert any("permissions violation" in str(error).lower() for error in errors), subject


async def test_strangers_stay_out_and_nobody_is_cut(env: dict[str, str], folder: Path, tmp_path: Path) -> None:
    secure = Secure(folder)
    ours = Certificates(tmp_path)
    ours.authority = authority = Authority.load(secure.file("ca.pem"), secure.file("ca.key"))
    foreign = Certificates(tmp_path, "foreign")
    strangers = {
        "foreign": foreign.issue(NODE),
        "expired": ours.issue(NODE, expired=True),
        "another name": ours.keep("name", authority.issue("somebody", ["127.0.0.1"])),
    }
    async with at_nats(env) as (member, _):
        for name, files in strangers.items():
            with pytest.raises(EtcdError):
                await etcd_takes(shown(env, *files))
            with pytest.raises((nats.errors.Error, OSError, TimeoutError)):
                async with at_nats(shown(env, *files)) as (client, _errors):
                    await client.flush(timeout=3)
            await member.flush(timeout=5)
            assert member.is_connected, name
        bare = {key: value for key, value in env.items() if "CERT" not in key and "KEY" not in key}
        with pytest.raises(EtcdError):
            await etcd_takes(bare)
        with pytest.raises((nats.errors.Error, OSError, TimeoutError)):
            async with at_nats(bare) as (client, _errors):
                await client.flush(timeout=3)
        await etcd_takes(env)


def test_files_are_private_and_the_environment_is_read_by_a_shell(env: dict[str, str], folder: Path) -> None:
    secure = Secure(folder)
    for path in secure.folder.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o644 if path.suffix == ".pem" else 0o600), path
    assert stat.S_IMODE(secure.folder.stat().st_mode) == 0o700
    words = f"set -a; . {secure.environment_file}; set +a; env"
    clean = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=True, env=clean)
    got = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: got.get(name) for name in env} == env


def test_another_kind_of_server_is_refused(env: dict[str, str], folder: Path) -> None:
    with pytest.raises(UserError, match="with TLS") as caught:
        infra.up(folder)
    assert "--secure" in caught.value.line()


async def test_a_node_elsewhere_gets_files_of_its_own(env: dict[str, str], folder: Path, tmp_path: Path) -> None:
    secure, made = Secure(folder), tmp_path / "two"
    secure.node("two", ["10.0.0.2", "two.example"], made, made)
    text = (made / "node.env").read_text()
    theirs = dict(line.split("=", 1) for line in text.splitlines())
    assert theirs.keys() == env.keys()
    assert sorted(path.name for path in made.iterdir()) == ["ca.pem", "node.env", "node.key", "node.pem", "revoked.pem"]
    await etcd_takes(theirs)
    async with at_nats(theirs) as (client, _):
        await client.flush(timeout=5)
    with pytest.raises(UserError, match="is there already"):
        secure.node("two", ["10.0.0.2"], made, made)
    for name, address in (("../x", "10.0.0.2"), ("x", "not an address")):
        with pytest.raises(UserError):
            secure.node(name, [address], tmp_path / "x", made)


async def test_a_revoked_node_is_out_of_etcd_at_once(env: dict[str, str], folder: Path, tmp_path: Path) -> None:
    secure, nodes = Secure(folder), {}
    for name in ("kept", "lost", "sold"):
        made = secure.node(name, ["127.0.0.1"], tmp_path / name, tmp_path / name)
        nodes[name] = dict(line.split("=", 1) for line in (made / "node.env").read_text().splitlines())
        await etcd_takes(nodes[name])
        assert PeerTls.from_environment(nodes[name]) is not None
    for name in ("lost", "sold"):
        listed = secure.revoke([tmp_path / name / "node.pem"])
        with pytest.raises(EtcdError):
            await etcd_takes(nodes[name])
    with pytest.raises(EtcdError):
        await etcd_takes(nodes["lost"])
    for one in (nodes["kept"], env):
        await etcd_takes(one)
    told = {**nodes["sold"], "DYNAMOD_TCP_TLS_CRL": str(listed), "DYNAMOD_TCP_ADDRESS": "127.0.0.1"}
    with pytest.raises(UserError, match="certificate revoked"):
        TcpSettings.from_environment(told)
    with pytest.raises(UserError, match="of another authority"):
        secure.revoke([Path(Certificates(tmp_path).issue("foreign")[0])])
    with pytest.raises(UserError, match="no secure servers were started"):
        Secure(tmp_path).revoke([tmp_path / "kept" / "node.pem"])


def test_the_authority_stays_and_is_never_written_over(tmp_path: Path) -> None:
    secure = Secure(tmp_path)
    assert len(list(secure.prepare("127.0.0.1"))) == 4
    before = {path.name: path.read_bytes() for path in secure.folder.iterdir()}
    assert list(secure.prepare("127.0.0.1")) == []
    assert {path.name: path.read_bytes() for path in secure.folder.iterdir()} == before
    assert len(list(secure.prepare("10.9.8.7"))) == 2, "server and node get the new address"
    assert secure.file("ca.pem").read_bytes() == before["ca.pem"]
    assert secure.file("ca.key").read_bytes() == before["ca.key"]

    shutil.move(secure.file("ca.key"), tmp_path / "kept")
    with pytest.raises(UserError, match=r"ca\.key"):
        list(secure.prepare("127.0.0.1"))
    foreign = Authority.make("foreign")
    secure.file("ca.key").write_bytes(foreign.pair.key)
    with pytest.raises(UserError, match="is not the key"):
        list(secure.prepare("127.0.0.1"))
    secure.file("ca.key").unlink()
    secure.file("ca.pem").unlink()
    with pytest.raises(UserError, match="no authority"):
        list(secure.prepare("127.0.0.1"))
    with pytest.raises(UserError, match=r"0\.0\.0\.0"):
        list(secure.prepare("0.0.0.0"))


def test_certificates_that_end_soon_are_made_anew(tmp_path: Path) -> None:
    secure = Secure(tmp_path)
    list(secure.prepare("127.0.0.1"))
    authority = secure.authority()
    assert authority is not None
    soon = authority.issue(NODE, ["127.0.0.1", "localhost"], days=5)
    secure.file("node.pem").write_bytes(soon.cert)
    secure.file("node.key").write_bytes(soon.key)
    assert [line.rpartition("/")[2] for line in secure.prepare("127.0.0.1")] == ["node.pem"]


def test_down_and_up_keep_the_authority_and_the_users(tmp_path: Path) -> None:
    folder, ports = tmp_path / "infra", {"nats_port": free_port(), "etcd_port": free_port()}
    try:
        env = infra.environment(infra.up(folder, secure=True, **ports))
        ca = Path(env["ETCD_AUTH_CA"]).read_bytes()
        infra.down(folder)
        assert infra.environment(infra.up(folder, secure=True, **ports)) == env
        asyncio.run(etcd_takes(env))
        record = json.loads((folder / "etcd.json").read_text())
        assert record["secure"] is True
        infra.down(folder, purge=True)
        assert Path(env["ETCD_AUTH_CA"]).read_bytes() == ca, "a purge removes data, not the authority"
        assert not (folder / "etcd").exists()
        infra.up(folder, secure=True, **ports)
        asyncio.run(etcd_takes(env))
    finally:
        infra.down(folder)


def test_plain_servers_that_run_are_not_taken_for_secure_ones(tmp_path: Path) -> None:
    folder = tmp_path / "infra"
    try:
        infra.up(folder, nats_port=free_port(), etcd_port=free_port())
        with pytest.raises(UserError, match="without TLS run") as caught:
            infra.up(folder, secure=True)
        assert "dynamo infra down" in caught.value.line()
    finally:
        infra.down(folder)
