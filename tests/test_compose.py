"""`deploy/docker-compose.yml` starts the two servers of NVIDIA Dynamo's guide, as far as a file can show it."""

import re
from pathlib import Path

import yaml

from dynamod.daemon.cluster import ETCD_PORT, NATS_PORT

ROOT = Path(__file__).parents[1]
LOCAL = "${DYNAMOD_BIND:-127.0.0.1}"


def test_both_servers_at_their_usual_ports() -> None:
    file = yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())
    services = file["services"]
    assert set(services) == {"nats-server", "etcd-server"}
    assert services["nats-server"]["image"].startswith("nats:")
    assert "-js" in services["nats-server"]["command"]
    assert f"{LOCAL}:{NATS_PORT}:{NATS_PORT}" in services["nats-server"]["ports"]
    # the project's own images; a repository of others may be emptied
    assert re.fullmatch(r"quay\.io/coreos/etcd:v3\.\d+\.\d+", services["etcd-server"]["image"])
    environment = services["etcd-server"]["environment"]
    assert environment["ETCD_LISTEN_CLIENT_URLS"] == f"http://0.0.0.0:{ETCD_PORT}", "its default is the loopback"
    assert environment["ETCD_ADVERTISE_CLIENT_URLS"].endswith(f":{ETCD_PORT}")
    assert f"{LOCAL}:{ETCD_PORT}:{ETCD_PORT}" in services["etcd-server"]["ports"]
    published = [port for service in services.values() for port in service["ports"]]
    assert all(port.startswith((f"{LOCAL}:", "127.0.0.1:")) for port in published), "the servers ask for no password"
