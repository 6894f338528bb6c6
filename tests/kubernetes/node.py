"""A node of Kubernetes for tests: each pod is local processes in a network namespace of its own, at 10.244.x.y.

It does for a pod what a kubelet does: environment, files, start, probes, status, restart, SIGTERM and SIGKILL. Images,
users and limits are left out: the container's command runs from this checkout. Paths of mounts become folders.
"""

import base64
import itertools
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from .control_plane import ADMIN, ControlPlane
from .volumes import Volumes

ROOT = Path(__file__).parents[2]
MERGE = "application/merge-patch+json"
HEARTBEAT = 2.0
"""Seconds between renewals of the node's lease; see `control_plane.NODE_GRACE`."""
SYNC = 5.0
"""Seconds between looks for changes of ConfigMaps and Secrets; a kubelet takes about 60."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Client:
    """The API server, as the administrator."""

    def __init__(self, plane: ControlPlane) -> None:
        self._url = plane.url
        self._tls = ssl._create_unverified_context()

    def call(self, method: str, path: str, body: Any = None, form: str = "application/json") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": form}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=self._tls) as answer:
            return json.loads(answer.read())

    def get(self, path: str) -> Any:
        return self.call("GET", path)


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)


class Network:
    """A bridge with the address of the control plane, and a namespace for each pod."""

    def __init__(self) -> None:
        self._tag = f"dk{os.getpid() % 100000}"
        self.prefix = f"10.244.{os.getpid() % 250 + 1}"
        self.address = f"{self.prefix}.1"
        self._numbers = itertools.count(2)
        ip("link", "add", self._tag, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self._tag)
        ip("link", "set", self._tag, "up")

    def add(self) -> tuple[str, str]:
        """The name and the address of a new namespace."""
        number = next(self._numbers)  # also for threads of two nodes
        name, address = f"{self._tag}-{number}", f"{self.prefix}.{number}"
        ip("netns", "add", name)
        ip("link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", f"{name}v", "master", self._tag, "up")
        ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        return name, address

    def cut(self, name: str) -> None:
        """Cut the network of the node in both directions. Its peers get no notice."""
        ip("link", "set", f"{name}v", "nomaster", check=False)

    def heal(self, name: str) -> None:
        ip("link", "set", f"{name}v", "master", self._tag, check=False)

    def remove(self, name: str) -> None:
        ip("netns", "del", name, check=False)

    def end(self) -> None:
        ip("link", "del", self._tag, check=False)


class PodRuntime:
    """One pod, in a thread of its own until it has gone."""

    def __init__(self, node: "Node", pod: Any, number: int) -> None:
        self.node, self.pod, self.folder = node, pod, node.folder / str(number)
        self.metadata, (self.container,) = pod["metadata"], pod["spec"]["containers"]
        self.name, self.namespace, self.uid = (self.metadata[key] for key in ("name", "namespace", "uid"))
        self.leaving: float | None = None  # seconds of grace
        self.ready = self.started = False
        self.restarts = 0
        self.netns, self.address = node.network.add()
        self._process: subprocess.Popen[bytes] | None = None
        self._due, self._failed = dict[str, float](), dict[str, int]()
        self._volumes = Volumes(self._object)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def pids(self) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", self.netns], capture_output=True, timeout=20, check=False)
        return [int(one) for one in done.stdout.split()]

    def kill(self) -> None:
        """SIGKILL to each process of the pod, as the kernel does when the first one is killed."""
        while found := self.pids():
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def join(self) -> None:
        self._thread.join(60)

    def _run(self) -> None:
        mounts = self._mounts()
        env, words = self._environment(mounts), self._words(mounts)
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    ["ip", "netns", "exec", self.netns, *words], stdout=log, stderr=log, env=env, start_new_session=True
                )
            self.started, self.ready = False, False
            self._due, self._failed = {}, {}
            self.tell()
            self._follow(self._process)
            self.kill()
            self._process.wait()
            if self.leaving is not None or self.node.ended.is_set():
                break
            self.ready = False
            self.restarts += 1
            self.tell()
            time.sleep(0.5)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        if not self.node.ended.is_set():
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
            self.node.quietly("DELETE", path, options)
        self.node.network.remove(self.netns)

    def _follow(self, process: "subprocess.Popen[bytes]") -> None:
        """Until the process has ended, or must be killed."""
        killed_at, refreshed = None, time.monotonic()
        while process.poll() is None and not self.node.ended.is_set():
            if self.leaving is not None and killed_at is None:
                killed_at = time.monotonic() + self.leaving
                process.send_signal(signal.SIGTERM)
            if killed_at is not None and time.monotonic() > killed_at:
                return
            if not self.node.cut_off and time.monotonic() > refreshed + SYNC:
                self._volumes.refresh()
                refreshed = time.monotonic()
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = self.container.get(kind)
                if probe is None or (kind == "startupProbe") == self.started or self.node.cut_off:
                    continue  # our probes come from outside of the node, those of a kubelet would reach the pod
                if time.monotonic() >= self._due.get(kind, 0.0) and not self._probed(kind, probe):
                    return
            time.sleep(0.1)

    def _probed(self, kind: str, probe: Any) -> bool:
        """Ask once; returns False where the container must be started anew."""
        self._due[kind] = time.monotonic() + probe.get("periodSeconds", 10)
        where = next(one["containerPort"] for one in self.container["ports"] if one["name"] == probe["httpGet"]["port"])
        try:
            url = f"http://{self.address}:{where}{probe['httpGet']['path']}"
            with urllib.request.urlopen(url, timeout=max(probe.get("timeoutSeconds", 1), 5)):
                well = True
        except OSError:
            well = False
        self._failed[kind] = 0 if well else self._failed.get(kind, 0) + 1
        over = self._failed[kind] >= probe.get("failureThreshold", 3)
        before = self.ready
        if kind == "startupProbe":
            self.started = well
            self.ready = well  # the readiness probe asks the same path next
        elif kind == "readinessProbe":
            self.ready = well or (self.ready and not over)
        if self.ready != before:
            self.tell()
        return not over or kind == "readinessProbe"

    def tell(self) -> None:
        """Write the status."""
        ready = "True" if self.ready and self.leaving is None else "False"
        kinds = {"PodScheduled": "True", "Initialized": "True", "ContainersReady": ready, "Ready": ready}
        container = {
            "name": self.container["name"],
            "ready": ready == "True",
            "started": self.started,
            "restartCount": self.restarts,
            "image": self.container["image"],
            "imageID": "",
            "state": {"running": {"startedAt": now()}},
        }
        status = {
            "phase": "Running",
            "startTime": now(),
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [{"type": kind, "status": said, "lastTransitionTime": now()} for kind, said in kinds.items()],
            "containerStatuses": [container],
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}/status"
        self.node.quietly("PATCH", path, {"metadata": {"uid": self.uid}, "status": status}, MERGE)

    # What the container has.

    def _mounts(self) -> dict[str, str]:
        """Folders by the path that the container knows."""
        volumes = {one["name"]: one for one in self.pod["spec"].get("volumes", ())}
        found = {}
        for mount in self.container.get("volumeMounts", ()):
            folder = self.folder / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            self._volumes.fill(folder, volumes[mount["name"]])
            found[mount["mountPath"]] = str(folder)
        account = self.folder / "account"
        account.mkdir(parents=True)
        name = self.pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{name}/token"
        token = self.node.client.call("POST", path, {"spec": {"expirationSeconds": 3600}})
        (account / "token").write_text(token["status"]["token"])
        (account / "namespace").write_text(self.namespace)
        shutil.copy(self.node.plane.ca, account / "ca.crt")
        return found

    def _object(self, plural: str, name: str) -> Any:
        return self.node.client.get(f"/api/v1/namespaces/{self.namespace}/{plural}/{name}")

    def _placed(self, text: str, mounts: dict[str, str]) -> str:
        for path, folder in mounts.items():
            if text == path or f"{path}/" in text:
                return text.replace(path, folder)
        return text

    def _words(self, mounts: dict[str, str]) -> list[str]:
        words = [*self.container.get("command", ()), *self.container.get("args", ())]
        return [f"{sys.prefix}/bin/{words[0]}", *(self._placed(word, mounts) for word in words[1:])]

    def _environment(self, mounts: dict[str, str]) -> dict[str, str]:
        fields = {
            **{f"metadata.{key}": self.metadata[key] for key in ("name", "namespace", "uid")},
            "status.podIP": self.address,
        }
        host, _, port = self.node.plane.url.removeprefix("https://").rpartition(":")
        env = {
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "dynamod/compat")]),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "DYNAMOD_KUBERNETES_ACCOUNT": str(self.folder / "account"),
            "DYNAMOD_SOCKET": str(self.folder / "d.sock"),
            "TMPDIR": mounts["/tmp"],
        }
        for one in self.container.get("env", ()):
            source = one.get("valueFrom", {})
            if "fieldRef" in source:
                env[one["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                key = source["secretKeyRef"]
                env[one["name"]] = base64.b64decode(self._object("secrets", key["name"])["data"][key["key"]]).decode()
            else:
                env[one["name"]] = self._placed(one.get("value", ""), mounts)
        return env


class Node:
    """Runs the pods that the scheduler has given to it."""

    def __init__(self, plane: ControlPlane, network: Network, folder: Path, name: str = "node-1") -> None:
        self.plane, self.network, self.folder, self.name = plane, network, folder, name
        self.client, self.ended = Client(plane), threading.Event()
        self.pods: dict[str, PodRuntime] = {}
        self.errors: list[str] = []
        self.cut_off = False
        self._numbers = iter(range(10**6))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Register, and run pods from now on."""
        labels = {"kubernetes.io/hostname": self.name}  # by which the scheduler spreads pods
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}}
        self.client.call("POST", "/api/v1/nodes", node)
        self._say_ready()
        self._thread.start()

    def cut(self) -> None:
        """The machine has no network any more; its processes go on."""
        self.cut_off = True
        for pod in list(self.pods.values()):
            self.network.cut(pod.netns)

    def heal(self) -> None:
        """The network is back."""
        for pod in list(self.pods.values()):
            self.network.heal(pod.netns)
        self.cut_off = False

    def _say_ready(self) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        condition = {"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": now()}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [condition | {"lastHeartbeatTime": now()}]}
        self.client.call("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, MERGE)

    def end(self) -> None:
        self.ended.set()
        self._thread.join(30)
        for pod in self.pods.values():
            pod.join()

    def quietly(self, method: str, path: str, body: Any, form: str = "application/json") -> None:
        """A write whose object may have gone, or whose server is away."""
        while not self.ended.is_set():
            try:
                if self.cut_off:
                    raise OSError("no network")
                self.client.call(method, path, body, form)
                return
            except urllib.error.HTTPError as error:
                if error.code not in (404, 409):
                    self.errors.append(f"{method} {path}: {error.code} {error.read()[:500]!r}")
                return
            except OSError:
                time.sleep(0.5)

    def _run(self) -> None:
        renewed = 0.0
        while not self.ended.is_set():
            if self.cut_off:
                time.sleep(0.2)
                continue
            try:
                if time.monotonic() > renewed + HEARTBEAT:
                    self._renew()
                    self._say_ready()
                    renewed = time.monotonic()
                self._look(self.client.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")["items"])
            except OSError as error:
                self.errors.append(str(error))
            time.sleep(0.2)

    def _renew(self) -> None:
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40}
        spec["renewTime"] = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec}
        try:
            self.client.call("PATCH", f"{LEASES}/{self.name}", {"spec": spec}, MERGE)
        except urllib.error.HTTPError:
            self.client.call("POST", LEASES, body)

    def _look(self, found: list[Any]) -> None:
        there = {one["metadata"]["uid"]: one for one in found}
        for uid, pod in there.items():
            runs, deleted = self.pods.get(uid), "deletionTimestamp" in pod["metadata"]
            if runs is None and not deleted:
                self.pods[uid] = made = PodRuntime(self, pod, next(self._numbers))
                made.begin()
            elif runs is not None and runs.leaving is None:
                if deleted:
                    runs.leaving = float(pod["metadata"].get("deletionGracePeriodSeconds", 30))
                elif runs.ready and _unready(pod):
                    runs.tell()  # the controller has called the pods of this node unready
        for uid in [uid for uid in self.pods if uid not in there]:
            gone = self.pods.pop(uid)
            gone.leaving = 0.0  # deleted by force: the process goes, too


def _unready(pod: Any) -> bool:
    """What the API server has of a pod."""
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "False"
