"""Etcd with users and with TLS: who may come in, and what is said to who may not."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod.daemon.cluster import cluster_of
from dynamod.discovery.etcd import bridge as etcd_impl
from dynamod.discovery.etcd.client import connect
from dynamod.discovery.etcd.probe import probe
from dynamod.message.errors import UserError
from tests.certificates import Certificates

Until = Callable[..., Any]

LOGIN = {"ETCD_AUTH_USERNAME": "root", "ETCD_AUTH_PASSWORD": "secret"}


@pytest.fixture(autouse=True)
def _logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dynamod.registry")


@pytest.fixture
async def locked(unstarted: Any) -> Any:
    """Etcd with a user root; tokens that nobody uses live for a second."""
    await unstarted.start("--auth-token-ttl=1", "--bcrypt-cost=4")
    settings = unstarted.settings()
    async with connect(settings.endpoints[0], settings) as raw:
        rpc, auth = raw._rpc, raw._auth
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"), timeout=3)
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="secret"), timeout=3)
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"), timeout=3)
        await auth.AuthEnable(rpc.AuthEnableRequest(), timeout=3)
    return unstarted


async def test_users_with_a_password_come_in(locked: Any, nodes: Any, eventually: Until) -> None:
    one, two = [await nodes(locked.settings(ttl=30, **LOGIN)).joined() for _ in range(2)]
    lease = one.put("v1/a")
    await eventually(lambda: "v1/a" in two.seen)
    client = one.bridge._client
    token = client._token
    assert token
    await asyncio.sleep(2.5)  # long enough for the token to be forgotten
    one.put("v1/b", lease=lease)
    await eventually(lambda: "v1/b" in two.seen)
    assert one.bridge._client is client, "a new token needs no new session"
    assert client._token != token
    one.registry.revoke(lease)
    await eventually(lambda: not two.seen)


@pytest.mark.parametrize(
    ("login", "reason"),
    [({**LOGIN, "ETCD_AUTH_PASSWORD": "wrong"}, "authentication failed"), ({}, "user name is empty")],
)
async def test_others_are_told_so(
    locked: Any,
    nodes: Any,
    eventually: Until,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    login: dict[str, str],
    reason: str,
) -> None:
    monkeypatch.setattr(etcd_impl, "REFUSED", 0.1)
    one = nodes(locked.settings(**login))
    one.put("v1/a")
    await eventually(lambda: "refuses this node" in caplog.text)
    await asyncio.sleep(0.5)  # it has tried some times more
    (line,) = [text for text in caplog.messages if "refuses this node" in text]
    assert reason in line
    assert "ETCD_AUTH_" in line
    assert "secret" not in line
    assert "wrong" not in line
    assert one.seen == {"v1/a": b"1"}
    assert not one.bridge.connected


async def test_a_password_that_is_not_asked_for_does_not_hurt(etcd: Any, nodes: Any, eventually: Until) -> None:
    one, two = [await nodes(etcd.settings(**LOGIN)).joined() for _ in range(2)]
    one.put("v1/a")
    await eventually(lambda: "v1/a" in two.seen)


class Authority:
    """A certificate authority of our own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.cert, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl("req", "-x509", *NEW, f"-subj=/CN={name}", f"-keyout={self.key}", f"-out={self.cert}")

    def issue(self, name: str, days: str = "2") -> tuple[Path, Path]:
        cert, key, request = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        _openssl("req", *NEW, f"-subj=/CN={name}", f"-keyout={key}", f"-out={request}")
        more = self.folder / "extensions"
        more.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        by = [f"-CA={self.cert}", f"-CAkey={self.key}", "-CAcreateserial"]
        _openssl("x509", "-req", f"-in={request}", *by, f"-out={cert}", f"-days={days}", f"-extfile={more}")
        return cert, key


NEW = ("-newkey=ec", "-pkeyopt=ec_paramgen_curve:P-256", "-nodes")


def _openssl(*arguments: str) -> None:
    words = [word for argument in arguments for word in argument.split("=", 1)]
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)


async def test_tls_with_certificates_on_both_sides(
    unstarted: Any, nodes: Any, eventually: Until, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make certificates with")
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    cert, key = ours.issue("server")
    unstarted.scheme = "https"
    files = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={ours.cert}", "--client-cert-auth"]
    await unstarted.start(*files)
    mine, secret = ours.issue("client")
    client = {"ETCD_AUTH_CLIENT_CERT": str(mine), "ETCD_AUTH_CLIENT_KEY": str(secret)}
    settings = unstarted.settings(ETCD_AUTH_CA=str(ours.cert), **client)
    one, two = [await nodes(settings).joined() for _ in range(2)]
    one.put("v1/a")
    await eventually(lambda: "v1/a" in two.seen)
    found = await probe(unstarted.url, settings=settings)
    assert found is not None
    assert found["healthy"]
    assert await probe(unstarted.url) is None, "its authority is not known"
    stranger = nodes(unstarted.settings(ETCD_AUTH_CA=str(other.cert), **client))
    await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in stranger.bridge.inspection()["last_error"])
    await eventually(lambda: "refuses this node" in caplog.text)
    assert not stranger.seen


@pytest.mark.parametrize("bad", ["expired", "foreign", "none", "server expired", "server elsewhere"])
async def test_bad_certificates_are_told_and_cut_nobody(
    bad: str,
    unstarted: Any,
    nodes: Any,
    eventually: Until,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, foreign = Certificates(tmp_path), Certificates(tmp_path, "foreign")
    hosts = ("elsewhere.example",) if bad == "server elsewhere" else ("127.0.0.1",)
    cert, key = ours.issue("server", hosts, expired=bad == "server expired")
    unstarted.scheme = "https"
    flags = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={ours.ca}", "--client-cert-auth"]
    await unstarted.start(*flags)

    def settings(*files: str) -> Any:
        names = "ETCD_AUTH_CLIENT_CERT", "ETCD_AUTH_CLIENT_KEY"
        return unstarted.settings(ETCD_AUTH_CA=ours.ca, **dict(zip(names, files, strict=False)))

    member = None if bad.startswith("server") else await nodes(settings(*ours.issue("good"))).joined()
    files = {
        "expired": lambda: ours.issue("old", expired=True),
        "foreign": lambda: foreign.issue("node"),
        "none": lambda: (),
    }.get(bad, lambda: ours.issue("node"))()
    stranger = nodes(settings(*files))
    stranger.put("v1/stranger")
    await eventually(lambda: "refuses this node" in caplog.text)
    (line,) = [text for text in caplog.messages if "refuses this node" in text]
    assert "check ETCD_AUTH_*" in line
    assert not stranger.bridge.connected
    if member is not None:
        member.put("v1/member")
        await asyncio.sleep(0.5)
        assert member.bridge.connected, "nobody else is cut"
        assert "v1/stranger" not in member.seen


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    mixed = {"ETCD_AUTH_CLIENT_CERT": ours.issue("one")[0], "ETCD_AUTH_CLIENT_KEY": ours.issue("two")[1]}
    env = {"ETCD_ENDPOINTS": "https://127.0.0.1:1", "ETCD_AUTH_CA": ours.ca, **mixed}
    with pytest.raises(UserError, match="ETCD_AUTH_CLIENT_CERT and ETCD_AUTH_CLIENT_KEY do not belong together"):
        cluster_of(env)
    nats = {name.replace("ETCD_AUTH_CLIENT", "NATS_TLS"): file for name, file in mixed.items()}
    with pytest.raises(UserError, match="NATS_TLS_CERT and NATS_TLS_KEY do not belong together"):
        cluster_of({"NATS_SERVER": "tls://127.0.0.1:1", "NATS_TLS_CA": ours.ca, **nats})
