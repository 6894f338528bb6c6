"""`deploy/docker-compose.yml` starts the two servers that the original's guide starts, as far as a file can show it."""

from pathlib import Path

import yaml

from dynamod.daemon.cluster import ETCD_PORT, NATS_PORT

ROOT = Path(__file__).parents[1]


def test_both_servers_at_their_usual_ports() -> None:
    file = yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())
    services = file["services"]
    assert set(services) == {"nats-server", "etcd-server"}
    assert services["nats-server"]["image"].startswith("nats:")
    assert "-js" in services["nats-server"]["command"]
    assert f"{NATS_PORT}:{NATS_PORT}" in services["nats-server"]["ports"]
    assert "etcd" in services["etcd-server"]["image"]
    assert services["etcd-server"]["environment"]["ALLOW_NONE_AUTHENTICATION"] == "yes"
    assert f"{ETCD_PORT}:{ETCD_PORT}" in services["etcd-server"]["ports"]
