"""What the environment says about etcd, and asking a member who it is."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from dynamod.discovery.etcd.probe import advised_against, probe
from dynamod.discovery.etcd.settings import Endpoint, EtcdSettings
from dynamod.message.errors import UserError


def test_without_endpoints_there_is_no_etcd() -> None:
    assert EtcdSettings.from_environment({}) is None
    assert EtcdSettings.from_environment({"ETCD_ENDPOINTS": " , ", "ETCD_LEASE_TTL": "x"}) is None


def test_everything_is_read(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("pem")
    settings = EtcdSettings.from_environment(
        {
            "ETCD_ENDPOINTS": "a:1, https://other:2/,http://[::1]:3,a:1,c",
            "ETCD_LEASE_TTL": "60",
            "ETCD_AUTH_USERNAME": "me",
            "ETCD_AUTH_PASSWORD": "hush",
            "ETCD_AUTH_CA": str(tmp_path / "ca"),
            "ETCD_AUTH_CLIENT_CERT": str(tmp_path / "cert"),
            "ETCD_AUTH_CLIENT_KEY": str(tmp_path / "key"),
        }
    )
    assert settings is not None
    assert settings.endpoints == (
        Endpoint("a:1", tls=True),
        Endpoint("other:2", tls=True),
        Endpoint("[::1]:3", tls=False),
        Endpoint("c:2379", tls=True),
    ), "without a scheme, files for TLS mean TLS"
    assert (settings.ttl, settings.username, settings.password) == (60, "me", "hush")
    assert str(settings.endpoints[1]) == "https://other:2"
    assert settings.ca == tmp_path / "ca"
    assert "hush" not in repr(settings)


def test_defaults() -> None:
    settings = EtcdSettings.from_environment({"ETCD_ENDPOINTS": "localhost:2379"})
    assert settings == EtcdSettings(endpoints=(Endpoint("localhost:2379", tls=False),), ttl=10)


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"ETCD_ENDPOINTS": "ftp://a:1"}, "ETCD_ENDPOINTS"),
        ({"ETCD_ENDPOINTS": "a:1,b:x"}, "ETCD_ENDPOINTS"),
        ({"ETCD_ENDPOINTS": "a:70000"}, "ETCD_ENDPOINTS"),
        ({"ETCD_ENDPOINTS": "http://user@other:1"}, "ETCD_ENDPOINTS"),
        ({"ETCD_ENDPOINTS": "://a:1"}, "ETCD_ENDPOINTS"),
        ({"ETCD_LEASE_TTL": "0"}, "ETCD_LEASE_TTL"),
        ({"ETCD_LEASE_TTL": "1.5"}, "ETCD_LEASE_TTL"),
        ({"ETCD_LEASE_TTL": "99999"}, "ETCD_LEASE_TTL"),
        ({"ETCD_AUTH_USERNAME": "me"}, "ETCD_AUTH_PASSWORD"),
        ({"ETCD_AUTH_PASSWORD": "hush"}, "ETCD_AUTH_USERNAME"),
        ({"ETCD_AUTH_CA": "nowhere.pem"}, "ETCD_AUTH_CA"),
        ({"ETCD_AUTH_CA": __file__, "ETCD_ENDPOINTS": "http://other:1"}, "ETCD_AUTH_CA"),
        ({"ETCD_AUTH_CLIENT_CERT": __file__}, "ETCD_AUTH_CLIENT_KEY"),
        ({"ETCD_AUTH_CLIENT_KEY": __file__}, "ETCD_AUTH_CLIENT_CERT"),
    ],
)
def test_mistakes_name_the_variable(env: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        EtcdSettings.from_environment({"ETCD_ENDPOINTS": "a:1", **env})
    assert caught.value.hint
    assert "hush" not in caught.value.line()


async def test_probe(etcd: Any) -> None:
    found = await probe(etcd.url)
    assert found is not None
    assert found["version"].startswith("3.")
    assert found["healthy"] is True
    assert found["endpoint"] == etcd.url
    etcd.end()
    assert await probe(etcd.url) is None


async def test_probe_of_something_else() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with server:
            assert await probe(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") is None
        assert await probe(f"127.0.0.1:{silent.getsockname()[1]}", 0.2) is None
    with pytest.raises(UserError):
        await probe("nonsense://x")


@pytest.mark.parametrize(
    ("version", "warned"),
    [("3.5.0", True), ("3.5.1", True), ("3.5.2-rc.0", True), ("3.5.3", False), ("3.5.21", False), ("3.6.5", False)],
)
def test_versions_with_a_known_loss_of_consistency_are_named(version: str, warned: bool) -> None:
    assert bool(advised_against(version)) == warned
    assert version in advised_against(version) or not warned
