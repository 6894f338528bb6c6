"""Mutual TLS between pods, with certificates from mounted secrets, by the values of the chart; `run_real.sh`."""

import base64
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.certificates import Certificates
from tests.e2e.command import until

from .cluster import START, VALUES, Cluster, alone
from .control_plane import NAMESPACE
from .node import PodRuntime
from .test_chart import rendered
from .traffic import Traffic
from .wire import Wire, client, greeting

pytestmark = pytest.mark.heavy
TOKENS = 300
TEXTS = [f"letter {number}" for number in range(16)]
OWN = "certificates"
"""The secret of the release."""
LIST = "revoked.pem"
TLS = (f"security.tlsSecretName={OWN}", f"security.tlsRevokedKey={LIST}", "workers.Worker.replicas=2")
REFUSED = "the certificate of the other node is not accepted"


class Deployment:
    """A release with certificates of an authority of its own, as `dynamo infra` makes them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.ours, self.others = Certificates(folder / "ours"), Certificates(folder / "others", "others")
        self.pair = self.ours.issue("pods", ("dynamod",))
        self.ours.revoke(age=timedelta(minutes=5))
        self.secret(OWN, self.pair)

    def secret(self, name: str, pair: tuple[str, str], *more: str, revoked: bytes = b"") -> None:
        """Create or replace a secret. `more`: files of further authorities."""
        authorities = b"".join(Path(one).read_bytes() for one in (self.ours.ca, *more))
        lists = revoked or (self.ours.folder / LIST).read_bytes()
        files = {"tls.crt": Path(pair[0]).read_bytes(), "tls.key": Path(pair[1]).read_bytes()}
        data = {
            key: base64.b64encode(one).decode() for key, one in (files | {"ca.crt": authorities, LIST: lists}).items()
        }
        content = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        self.cluster.plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=content)

    def update(self, mode: str) -> None:
        """As `helm upgrade --set security.tlsMode=MODE`, until all pods are new."""
        self.cluster.install(*TLS, f"security.tlsMode={mode}")
        until(self._is_new, START, f"all pods in the mode {mode}")
        for front in self.cluster.ready("frontend").values():
            until(lambda: self.cluster.served(front) == 2, 60, "both workers")  # noqa: B023 - awaited at once

    def _is_new(self) -> bool:
        """Whether no pod of the template before is left."""
        for kind, component in (("deployments", "frontend"), ("statefulsets", "worker")):
            path = f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}/{self.cluster.graph}-{component}"
            found = self.cluster.nodes[0].client.get(path)
            status, wanted = found["status"], found["spec"]["replicas"]
            counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
            if counts != [wanted] * 3 or status["observedGeneration"] < found["metadata"]["generation"]:
                return False
        return len(self.cluster.running("frontend")) == len(self.cluster.running("worker")) == 2

    def add(self, component: str, name: str, secret: str = OWN, **env: str) -> PodRuntime:
        """A pod like those of a component with another secret and other variables; returns it with its process."""
        code, out, err = rendered(*VALUES, *TLS, namespace=NAMESPACE, release=self.cluster.release)
        assert code == 0, err
        full = f"{self.cluster.graph}-{component}"
        found = next(one for one in yaml.safe_load_all(out) if one and _is_workload(one, full))
        one = deepcopy(found)
        one["metadata"]["name"] = f"{self.cluster.graph}-{name}"
        template = one["spec"]["template"]
        for labels in (
            one["metadata"]["labels"],
            one["spec"]["selector"]["matchLabels"],
            template["metadata"]["labels"],
        ):
            labels["app.kubernetes.io/component"] = name
        one["spec"]["replicas"] = 1
        (container,) = template["spec"]["containers"]
        container["env"] = [each for each in container["env"] if each["name"] not in env]
        container["env"] += [{"name": key, "value": value} for key, value in env.items()]
        for volume in template["spec"]["volumes"]:
            if volume["name"] == "tls":
                volume["secret"]["secretName"] = secret
        self.cluster.plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=one)
        until(lambda: self.cluster.running(name), 60, f"a process of {name}")
        return self.cluster.pod(self.cluster.running(name)[0])

    def take_away(self, component: str, name: str) -> None:
        kind = "statefulset" if component == "worker" else "deployment"
        self.cluster.kubectl("delete", f"{kind}/{self.cluster.graph}-{name}")

    def answers(self) -> Mapping[str, str]:
        return dict(zip(TEXTS, alone(self.cluster, TEXTS, max_tokens=TOKENS), strict=True))

    def traffic(self, wanted: Mapping[str, str]) -> Traffic:
        return Traffic(self.cluster, wanted, TOKENS)

    @property
    def workers(self) -> list[PodRuntime]:
        return [self.cluster.pod(name) for name in self.cluster.running("worker")]

    @property
    def worker(self) -> PodRuntime:
        return self.cluster.pod(f"{self.cluster.graph}-worker-0")


def _is_workload(one: Any, name: str) -> bool:
    return one["kind"] in ("Deployment", "StatefulSet") and one["metadata"]["name"] == name


def lines(pod: PodRuntime, text: str) -> list[str]:
    """Lines of a pod's log with a text, of all its starts."""
    return [line for line in (pod.folder / "log").read_text(errors="replace").splitlines() if text in line]


@pytest.fixture(scope="module")
def mutual(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A release of its own without TLS; the other one has no pods meanwhile."""
    shared_cluster.scale(0, 0)
    made = Deployment(shared_cluster.another("tls"), tmp_path_factory.mktemp("tls"))
    made.update("off")
    yield made
    for kind in ("statefulset", "deployment"):
        made.cluster.kubectl("delete", kind, "-l", f"dynamod.dev/graph={made.cluster.graph}")
    until(lambda: not [one for one in made.cluster.pods if one.name.startswith(made.cluster.graph)], 90, "the end")


@pytest.fixture
def secure(mutual: Deployment) -> Deployment:
    """The release in the mode require."""
    mutual.update("require")
    return mutual


def test_rolling_updates_change_a_deployment_to_tls_and_end_no_stream(mutual: Deployment) -> None:
    wanted = mutual.answers()
    with Wire(mutual.worker.netns) as wire:
        assert mutual.answers() == wanted
    assert wire.payloads, "requests were read"
    assert wire.secure == 0
    assert wire.has(b"letter") or wire.has(b"generate"), "in the clear"
    assert greeting(mutual.worker.address) == "hello"

    with_ours = client(mutual.ours.ca, mutual.pair)
    for mode, plain in (("accept", True), ("require", False)):
        with mutual.traffic(wanted) as traffic:
            mutual.update(mode)
        print(f"{mode}: {traffic.answers} answers, {traffic.elsewhere} times another frontend")
        assert traffic.answers > 2 * len(TEXTS), "clients have asked all the time"
        assert (greeting(mutual.worker.address) == "hello") == plain
        assert greeting(mutual.worker.address, with_ours) == "hello"
    with Wire(mutual.worker.netns) as wire:
        assert mutual.answers() == wanted
    assert wire.payloads
    assert wire.secure > 0.9
    assert not wire.has(b"letter")
    assert not wire.has(b"generate")


def test_what_shows_no_certificate_of_ours_is_refused(secure: Deployment) -> None:
    """Clients of a worker's port, and a frontend without TLS: its request ends with an error soon."""
    address = secure.worker.address
    foreign = secure.others.issue("foreign")
    old = secure.ours.issue("old", expired=True)
    assert greeting(address, client(secure.ours.ca, secure.pair)) == "hello"
    for context in (None, client(secure.ours.ca, None), client(secure.ours.ca, foreign), client(secure.ours.ca, old)):
        assert greeting(address, context) != "hello"
    wanted = secure.answers()
    with secure.traffic(wanted):
        plain = secure.add("frontend", "plain", DYNAMOD_TCP_TLS="off")
        until(lambda: secure.cluster.ready("plain"), START, "the frontend without TLS")
        stream = secure.cluster.stream(plain.address, "is one there?")
        assert stream.status >= 500
        assert stream.error
        stream.close()
    secure.take_away("frontend", "plain")


def test_a_pod_with_a_foreign_certificate_is_refused_in_one_line_and_ends_no_other_stream(secure: Deployment) -> None:
    secure.secret("foreign", secure.others.issue("intruder", ("dynamod",)), secure.others.ca)
    wanted, (front, *_) = secure.answers(), secure.cluster.ready("frontend")
    with secure.traffic(wanted):
        asks = secure.add("frontend", "stranger", "foreign", DYNAMOD_TCP_TLS_CRL="")
        until(lambda: secure.cluster.ready("stranger"), START, "the frontend")
        stream = secure.cluster.stream(asks.address, "is one there?")
        assert stream.status >= 500
        print(stream.error)
        stream.close()
        until(lambda: lines(asks, "certificate"), 10, "a line in its log")
        print(*lines(asks, "certificate"), sep="\n")
        answers = secure.add("worker", "intruder", "foreign", DYNAMOD_TCP_TLS_CRL="")
        until(lambda: secure.cluster.ready("intruder"), START, "the worker")
        until(lambda: lines(secure.cluster.pod(front), REFUSED), 60, "a line in the log of a frontend")
    told = lines(secure.cluster.pod(front), REFUSED)
    print(*told, sep="\n")
    assert answers.address in told[0]
    for component, name in (("frontend", "stranger"), ("worker", "intruder")):
        secure.take_away(component, name)


def test_a_certificate_that_has_expired_is_one_line_at_the_start(secure: Deployment) -> None:
    secure.secret("expired", secure.ours.issue("late", ("dynamod",), expired=True))
    with secure.traffic(secure.answers()):
        late = secure.add("worker", "late", "expired")
        until(lambda: late.restarts >= 2, 60, "it ends, and is started again")
    assert not secure.cluster.ready("late")
    said = lines(late, "certificate has expired")
    print(said[0])
    assert late.restarts <= len(said) <= late.restarts + 1, "one line for each start"
    secure.take_away("worker", "late")


def test_a_list_of_revoked_certificates_counts_when_its_secret_changes(secure: Deployment) -> None:
    pair = secure.ours.issue("lost", ("dynamod",))
    secure.secret("lost", pair)  # its list stays as it is
    wanted = secure.answers()
    lost = secure.add("frontend", "lost", "lost")
    until(lambda: secure.cluster.ready("lost"), START, "the frontend")
    assert secure.cluster.stream(lost.address, TEXTS[0], max_tokens=TOKENS).read().text == wanted[TEXTS[0]]
    context = client(secure.ours.ca, pair)
    assert greeting(secure.worker.address, context) == "hello"
    with secure.traffic(wanted):
        secure.ours.revoke(pair[0])
        secure.secret(OWN, secure.pair)
        for worker in secure.workers:  # each node brings the new secret into its pods at another time
            until(lambda: greeting(worker.address, context) != "hello", 30, f"{worker.name} has the list")  # noqa: B023 - awaited at once
        lost.kill()  # connections that are open stay, so its process is a new one
        until(lambda: lost.restarts == 1 and lost.ready, START, "the frontend, again")
        stream = secure.cluster.stream(lost.address, TEXTS[0])
        assert stream.status >= 500
        stream.close()
    secure.take_away("frontend", "lost")
