"""Daemons over the servers of `dynamo infra up --secure`, and strangers at the same servers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificates
from tests.e2e.disagg import LONG
from tests.e2e.nodes import fast, instances, models, on

PREFILL, DECODE = "two", "three"


class SecureServers:
    """NATS and etcd as the command starts them; the environment is that of the file that it has written."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.folder = machine, machine.folder / "infra"
        ports = ("--nats-port", machine.port(), "--etcd-port", machine.port())
        self.started = self.command("up", "--secure", *ports)
        assert self.started.code == 0, self.started.err
        (file,) = re.findall(r"set -a; \. (\S+); set \+a", self.started.out)
        self.env = dict(line.split("=", 1) for line in Path(file).read_text().splitlines())

    def command(self, name: str, *words: Any) -> Any:
        return self.machine.run("dynamo", "infra", name, *words, "--data", self.folder)


@pytest.fixture
def servers(machine: Any) -> Iterator[SecureServers]:
    started = SecureServers(machine)
    yield started
    assert started.command("down").code == 0


def joined(machine: Any, where: dict[str, str], pool: str, role: str = "") -> Any:
    words = ("--disaggregation-mode", role) if role else ()
    address = f"in=dyn://m.{pool}.generate"
    started = machine.start(
        *("dynamo-run", address, "out=mocker", "sample", "--extra-engine-args", fast(machine, 20), *words), **where
    )
    started.prints("ready")
    return started


def handoffs(machine: Any, node: str) -> dict[str, Any]:
    found = machine.raw("GET", "/v1/inspect", socket_path=machine.folder / node / "d.sock")[1]
    (worker,) = [one["details"] for one in found if "feeds" in (one.get("details") or {})]
    return dict(worker["handoff"])


def test_nodes_answer_over_tls_and_strangers_stay_out(machine: Any, servers: SecureServers, tmp_path: Path) -> None:
    here = on(machine, servers, "one")  # type: ignore[arg-type]
    words = ("--http-port", 0, "--max-local-prefill-length", 32)
    url = machine.start("dynamo-run", "in=http", "out=auto", *words, **here).ready()
    for node, role in ((PREFILL, "prefill"), (DECODE, "decode")):
        joined(machine, on(machine, servers, node), role, role)  # type: ignore[arg-type]
    machine.until(lambda: instances(machine, url) == sorted((PREFILL, DECODE)))
    assert models(machine, url) == ["sample"]

    found = list(Path(machine.folder).glob("**/kv-*.sock"))
    assert found, "blocks would pass through memory of this machine, which both nodes share"
    for file in found:
        file.unlink()
    for number in range(3):
        machine.begin(url, f"{number} {LONG}", request=f"r{number}", max_tokens=4).answer()
    told = handoffs(machine, DECODE)
    assert (told["transfers"], told["failed"]) == (3, 0), "blocks came, and TLS is the only way that was left"

    foreign = Certificates(tmp_path, "foreign")
    cert, key = foreign.issue("node")
    names = ("NATS_TLS_CERT", "ETCD_AUTH_CLIENT_CERT"), ("NATS_TLS_KEY", "ETCD_AUTH_CLIENT_KEY")
    theirs = {**dict.fromkeys(names[0], cert), **dict.fromkeys(names[1], key)}
    stranger = on(machine, servers, "four", **theirs)  # type: ignore[arg-type]
    joined(machine, stranger, "stranger")  # the daemon serves its own node
    machine.until(lambda: _error(machine, "four"))
    text = machine.ask(url, "/health")[1]
    assert sorted(one["node"] for one in json.loads(text)["instances"]) == sorted((PREFILL, DECODE))
    assert machine.begin(url, f"again {LONG}", request="again", max_tokens=4).answer()
    assert "ermissions" not in (servers.folder / "nats-server.log").read_text(), "nodes need no further subject"


def _error(machine: Any, node: str) -> str:
    status = machine.raw("GET", "/v1/status", socket_path=machine.folder / node / "d.sock")[1]
    cluster = status.get("cluster") or {}
    return str(cluster.get("error", "")) if not cluster.get("connected") else ""
