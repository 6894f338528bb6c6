"""Several nodes on one machine: each has a name, a control socket and so a daemon of its own."""

import base64
import json
import os
import shutil
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

from dynamod.features.infra import brokers as infra
from dynamod.preprocess.locate import locate


class Servers:
    """NATS and etcd on free ports; each can be stopped, frozen and started again with its data."""

    def __init__(self, machine: Any, host: str = "127.0.0.1") -> None:
        self.folder, self.host = Path(machine.folder) / "infra", host
        self.ports = {"nats_port": machine.port(), "etcd_port": machine.port()}
        self.up()

    def up(self) -> None:
        """Start what does not run."""
        self.servers = {server.name: server for server in infra.up(self.folder, host=self.host, **self.ports)}

    def kill(self, name: str) -> None:
        """End one at once, and wait until it is gone."""
        os.kill(self.servers[name].pid, signal.SIGKILL)
        while self.servers[name].lives:
            time.sleep(0.005)

    def down(self) -> None:
        """End both, in good order."""
        infra.down(self.folder)

    @property
    def env(self) -> dict[str, str]:
        return infra.environment(list(self.servers.values()))


def on(machine: Any, servers: Servers, node: str, **more: str) -> dict[str, str]:
    """What a command on a node of that name is told: its own socket is its own daemon."""
    folder = machine.folder / node
    folder.mkdir(exist_ok=True)
    return {
        **servers.env,
        "DYNAMOD_CLUSTER": "auto",
        "DYNAMOD_NODE": node,
        "DYNAMOD_SOCKET": str(folder / "d.sock"),
        **more,
    }


def models(machine: Any, url: str) -> list[str]:
    return sorted(model["id"] for model in json.loads(machine.ask(url, "/v1/models")[1])["data"])


def fast(machine: Any, speed: float = 1) -> Path:
    path = Path(machine.folder) / f"mocker-{speed}.json"
    path.write_text(json.dumps({"speedup_ratio": speed, "block_size": 16, "num_gpu_blocks": 65536}))
    return path


def long_model(machine: Any) -> Path:
    """The sample's tokenizer under a longer context."""
    folder = Path(machine.folder) / "long"
    shutil.copytree(locate("sample"), folder, ignore=shutil.ignore_patterns("*.safetensors", "*.gguf"))
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 1_000_000
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def worker(
    machine: Any,
    servers: Servers,
    node: str,
    *words: Any,
    speed: float = 1,
    env: dict[str, str] | None = None,
    within: str = "",
) -> Any:
    started = machine.start(
        *("dynamo-run", "in=dyn://llama3B.backend.generate", "out=mocker", "sample", "--extra-engine-args"),
        *(fast(machine, speed), *words),
        within=within,
        **{**on(machine, servers, node), **(env or {})},
    )
    started.prints("ready")
    return started


def front(machine: Any, servers: Servers, *words: Any) -> tuple[Any, str]:
    started = machine.start(
        "dynamo-run", "in=http", "out=auto", "--http-port", 0, *words, **on(machine, servers, "one")
    )
    return started, started.ready()


def instances(machine: Any, url: str) -> list[str]:
    """Nodes of the instances that a frontend knows."""
    return sorted(one["node"] for one in json.loads(machine.ask(url, "/health")[1])["instances"])


def put(servers: Servers, key: str, value: bytes | None = None) -> None:
    """Into etcd, by its own JSON interface; None: delete it."""
    body = {name: base64.b64encode(data).decode() for name, data in (("key", key.encode()), ("value", value)) if data}
    url = f"http://127.0.0.1:{servers.ports['etcd_port']}/v3/kv/{'deleterange' if value is None else 'put'}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=5) as answer:
        assert answer.status == 200
