"""A real kube-apiserver with a real etcd, from the folder of programs in DYNAMOD_TEST_KUBERNETES."""

import json
import os
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

FOLDER = "DYNAMOD_TEST_KUBERNETES"
ADMIN = "admin-token"
NAMESPACE = "serving"
"""Of the objects that the tests apply."""


def programs() -> Path:
    """The folder of the programs; skips the test without them."""
    folder = Path(os.environ.get(FOLDER, ""))
    if not os.environ.get(FOLDER) or not (folder / "kube-apiserver").exists():
        pytest.skip(f"{FOLDER} names no folder with kube-apiserver, kubectl and etcd: tests/kubernetes/run_real.sh")
    return folder


NODE_GRACE = 10
"""Seconds without a heartbeat after which the controller calls a node unreachable; 50 by default."""


AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
    "rules": [{"level": "Metadata", "userGroups": [f"system:serviceaccounts:{NAMESPACE}"]}, {"level": "None"}],
}
"""What the server writes down: the requests of our pods, as they come."""


class ControlPlane:
    """Etcd and API server on free ports, data and certificates below `folder`. `address`: of the API server."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.bin, self.folder, self.address = programs(), folder, address
        self.port, self.etcd_port, self.peer_port = free_port(), free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def ca(self) -> Path:
        return self.folder / "tls/apiserver.crt"

    def start(self) -> None:
        """Both, and wait until the server is ready."""
        self._run("etcd", *self._etcd())
        (self.folder / "tokens.csv").write_text(f'{ADMIN},admin,admin,"system:masters"\n')
        (self.folder / "audit.json").write_text(json.dumps(AUDIT))
        key = self.folder / "sa.key"
        if not key.exists():
            subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self.start_api()

    def start_api(self) -> None:
        key = self.folder / "sa.key"
        flags = {
            "etcd-servers": f"http://127.0.0.1:{self.etcd_port}",
            "secure-port": str(self.port),
            "bind-address": self.address,
            "cert-dir": str(self.folder / "tls"),
            "token-auth-file": str(self.folder / "tokens.csv"),
            "authorization-mode": "RBAC",
            "audit-policy-file": str(self.folder / "audit.json"),
            "audit-log-path": str(self.folder / "audit.log"),
            "service-account-issuer": self.url,
            "service-account-key-file": str(key),
            "service-account-signing-key-file": str(key),
            "service-cluster-ip-range": "10.96.0.0/24",
            "disable-admission-plugins": "ServiceAccount",
        }
        self._run("kube-apiserver", *(f"--{name}={value}" for name, value in flags.items()))
        end = time.monotonic() + 120
        while self.kubectl("get", "--raw", "/readyz", check=False).stdout != b"ok":
            assert self.processes["kube-apiserver"].poll() is None, self.log("kube-apiserver")
            assert time.monotonic() < end, self.log("kube-apiserver")
            time.sleep(0.3)

    def start_controllers(self) -> None:
        """The controllers and the scheduler. Skips the test without their programs."""
        if not (self.bin / "kube-controller-manager").exists() or not (self.bin / "kube-scheduler").exists():
            pytest.skip(f"{FOLDER} has no kube-controller-manager and kube-scheduler: tests/kubernetes/run_real.sh")
        file = self.folder / "admin.conf"
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {"token": ADMIN}}]
        clusters = [{"name": "c", "cluster": cluster}]
        content = {"apiVersion": "v1", "kind": "Config", "clusters": clusters, "users": users, "contexts": [context]}
        file.write_text(json.dumps(content | {"current-context": "c"}))
        common = (f"--kubeconfig={file}", "--leader-elect=false", f"--bind-address={self.address}")
        self._run(
            "kube-controller-manager",
            *common,
            f"--secure-port={free_port()}",
            f"--service-account-private-key-file={self.folder / 'sa.key'}",
            f"--root-ca-file={self.ca}",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={NODE_GRACE}s",
        )
        self._run("kube-scheduler", *common, f"--secure-port={free_port()}")

    def go_away(self) -> None:
        """The API server stops, and with it the controllers, which end when they cannot renew their lease."""
        self.stop("kube-controller-manager", "kube-scheduler", "kube-apiserver")

    def come_back(self) -> None:
        self.start_api()
        self.start_controllers()

    def stop(self, *names: str) -> None:
        for name in names or list(self.processes):
            process = self.processes.pop(name)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def kubectl(self, *words: str, data: Any = None, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        command = [str(self.bin / "kubectl"), f"--server={self.url}", f"--token={ADMIN}", "--insecure-skip-tls-verify"]
        given = None if data is None else json.dumps(data).encode()
        done = subprocess.run([*command, *words], input=given, capture_output=True, timeout=60, check=False)
        assert not check or done.returncode == 0, done.stderr.decode()
        return done

    def requests(self, since: float) -> list[tuple[float, str, str]]:
        """Seconds since the epoch, verb and kind of what pods have asked for."""
        found = []
        for line in (self.folder / "audit.log").read_text().splitlines():
            one = json.loads(line)
            at = datetime.fromisoformat(one["requestReceivedTimestamp"]).timestamp()
            if at >= since:
                found.append((at, str(one["verb"]), str(one["objectRef"]["resource"])))
        return found

    def get(self, path: str) -> Any:
        return json.loads(self.kubectl("get", "--raw", path).stdout)

    def token(self, namespace: str, account: str) -> str:
        return self.kubectl("create", "token", account, "-n", namespace).stdout.decode().strip()

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        return [
            *(f"--data-dir={self.folder / 'etcd'}", "--log-level=error", f"--listen-client-urls={client}"),
            *(f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"),
            *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
        ]

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([str(self.bin / name), *words], stdout=log, stderr=log)
