"""The usual ports of NATS and etcd, and whether they answer there. Imports no client of either."""

import json
import socket

NATS_PORT, ETCD_PORT = 4222, 2379


def nats_answers(url: str, timeout: float = 1.0) -> bool:
    """Whether a NATS server greets at a URL."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout) as sock:
            sock.settimeout(timeout)
            return sock.recv(5) == b"INFO "
    except (OSError, ValueError):
        return False


def etcd_answers(url: str, timeout: float = 1.0) -> bool:
    """Whether a healthy etcd answers at a URL."""
    import urllib.request  # slow to import, and rarely needed

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=timeout) as answer:
            return bool(json.load(answer).get("health") == "true")
    except (OSError, ValueError, AttributeError):
        return False
