"""`dynamo infra` against the real servers."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dynamod.discovery.etcd.probe import advised_against, probe
from dynamod.features.infra import brokers as infra
from dynamod.message.errors import UserError
from tests.ports import free_port


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "infra"
    infra.down(tmp_path / "infra")


def test_up_is_healthy_and_down_leaves_nothing(folder: Path) -> None:
    ports = {"nats_port": free_port(), "etcd_port": free_port()}
    servers = infra.up(folder, **ports)
    assert [server.name for server in servers] == ["nats-server", "etcd"]
    assert all(server.healthy for server in servers)
    assert infra.environment(servers) == {
        "NATS_SERVER": f"nats://127.0.0.1:{ports['nats_port']}",
        "ETCD_ENDPOINTS": f"http://127.0.0.1:{ports['etcd_port']}",
    }
    version = asyncio.run(probe(servers[1].url))["version"]  # type: ignore[index]
    assert infra.warnings(servers) == [text for text in [advised_against(version)] if text]
    assert [server.pid for server in infra.up(folder, **ports)] == [server.pid for server in servers], (
        "they run already"
    )
    os.kill(servers[0].pid, signal.SIGKILL)
    while servers[0].lives:
        pass
    again = infra.up(folder, **ports)
    assert again[0].pid != servers[0].pid
    assert again[1].pid == servers[1].pid
    assert len(infra.down(folder)) == 2
    assert infra.running(folder) == []
    assert not any(server.lives for server in again)
    assert (folder / "etcd").is_dir(), "data stays"
    infra.down(folder, purge=True)
    assert not folder.exists()


def test_a_port_that_is_taken_is_named_and_nothing_runs(folder: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with pytest.raises(UserError, match="for etcd: Address already in use") as caught:
            infra.up(folder, nats_port=free_port(), etcd_port=sock.getsockname()[1])
        assert "--etcd-port" in caught.value.line()
    assert infra.running(folder) == []


def test_a_server_that_cannot_start_is_explained(folder: Path) -> None:
    folder.mkdir()
    (folder / "etcd").write_text("no folder")
    with pytest.raises(UserError, match="etcd ended at once"):
        infra.up(folder, nats_port=free_port(), etcd_port=free_port())
    assert infra.running(folder) == []
    assert list(folder.glob("*.json")) == []


def test_a_record_of_another_process_is_not_believed(folder: Path) -> None:
    folder.mkdir()
    other = {"name": "etcd", "pid": os.getpid(), "url": "http://other:1", "log": str(folder / "etcd.log")}
    for record in (json.dumps(other), "torn {", "[1]"):
        (folder / "etcd.json").write_text(record)
        assert infra.running(folder) == []
        assert infra.down(folder) == []


def test_missing_binaries_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(UserError, match="nats-server is not installed") as caught:
        infra.up(folder)
    assert "infra" in caught.value.line()


def test_servers_that_start_at_the_same_time_do_not_keep_each_other(tmp_path: Path) -> None:
    """The lock of a server is its own: who kills one sees at once that it is gone."""
    with ThreadPoolExecutor(4) as pool:
        ports = [(free_port(), free_port()) for _ in range(4)]
        made = [
            pool.submit(infra.up, tmp_path / str(number), nats_port=nats, etcd_port=etcd)
            for number, (nats, etcd) in enumerate(ports)
        ]
        servers = [server for one in made for server in one.result()]
    try:
        for server in servers:
            assert server.lives
            os.kill(server.pid, signal.SIGKILL)
            end = time.monotonic() + 5
            while server.lives:
                assert time.monotonic() < end, f"{server.name} of {server.log} is held by another"
                time.sleep(0.01)
    finally:
        for number in range(4):
            infra.down(tmp_path / str(number))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net/tcp")
def test_the_second_port_of_etcd_is_one_that_the_kernel_gives(folder: Path) -> None:
    """Found: etcd's port for peers was chosen at random, and was a port that another server was about to use."""
    ports = {"nats_port": free_port(), "etcd_port": free_port()}
    etcd = infra.up(folder, **ports)[1]
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    others = _listening(etcd.pid) - {ports["etcd_port"]}
    assert len(others) == 1
    assert others.pop() >= first


def _listening(pid: int) -> set[int]:
    """Ports at which a process listens."""
    sockets = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(each[1].split(":")[1], 16) for each in fields if each[3] == "0A" and f"socket:[{each[9]}]" in sockets}
