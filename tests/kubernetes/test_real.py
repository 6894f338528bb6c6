"""Discovery, roles and manifests at a real kube-apiserver; `tests/kubernetes/run_real.sh`."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.features.kubernetes.fake_api import endpoint_slice

from .cluster import GRAPH
from .control_plane import NAMESPACE, ControlPlane
from .test_chart import ALL, CHART, rendered

pytestmark = pytest.mark.heavy
EXAMPLE = CHART.parents[2] / "examples/kubernetes/disagg.yaml"
NOT_THERE = {"ServiceMonitor", "PodMonitor"}
"""Kinds of an operator that is not installed."""


def installed(plane: ControlPlane) -> None:
    """The chart's account, role and binding, as helm renders them."""
    code, out, err = rendered(*ALL, namespace=NAMESPACE)
    assert code == 0, err
    for one in yaml.safe_load_all(out):
        if one and one["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
            plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=one)


def test_the_server_takes_the_manifests_of_the_chart(plane: ControlPlane) -> None:
    code, out, err = rendered(*ALL, namespace=NAMESPACE)
    assert code == 0, err
    kinds = []
    for one in yaml.safe_load_all(out):
        if one and one["kind"] not in NOT_THERE:
            kinds.append(one["kind"])
            plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-n", NAMESPACE, "-f", "-", data=one)
    assert {"Deployment", "StatefulSet", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler"} <= {*kinds}


@pytest.mark.parametrize(
    "words",
    [
        ("graphs.disagg:Frontend", "-f", "configs/disagg.yaml"),
        ("graphs.disagg_planner:Frontend", "-f", "configs/disagg_planner.yaml", "--cache-claim=models"),
        ("-f", str(EXAMPLE), "--tls-secret=pair", "--secret=shared"),
    ],
)
def test_the_server_takes_what_dynamo_manifest_prints(
    plane: ControlPlane, machine: Any, words: tuple[str, ...]
) -> None:
    """By the user's own words: `dynamo manifest ... | kubectl apply --dry-run=server`."""
    printed = machine.run("dynamo", "manifest", *words, "--namespace", NAMESPACE)
    assert printed.code == 0, printed.err
    (machine.folder / "printed.yaml").write_text(printed.out)
    file = str(machine.folder / "printed.yaml")
    done = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", file).stdout.decode()
    kinds = {line.partition("/")[0] for line in done.splitlines()}
    assert {"deployment.apps", "networkpolicy.networking.k8s.io", "role.rbac.authorization.k8s.io"} <= kinds
    assert len(done.splitlines()) == printed.out.count("\n---\n") + 1


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ((), ()),
        (
            (
                "discovery=etcd",
                "etcd.endpoints=https://example.org",
                "etcd.authSecretName=user",
                "etcd.tlsSecretName=of-etcd",
            ),
            (
                "--discovery=etcd",
                "--etcd-endpoints=https://example.org",
                "--etcd-auth-secret=user",
                "--etcd-tls-secret=of-etcd",
            ),
        ),
        (
            ("requests=nats", "nats.server=tls://n:1", "nats.authSecretName=user", "nats.tlsSecretName=of-nats"),
            ("--requests=nats", "--nats-server=tls://n:1", "--nats-auth-secret=user", "--nats-tls-secret=of-nats"),
        ),
    ],
)
def test_pods_of_the_chart_and_of_the_manifest_are_the_same(
    machine: Any, values: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    """Probes, environment, accounts and volumes: what differs is the command and the config that it reads."""
    given = ("security.secretName=shared", "cache.enabled=true", "cache.existingClaim=models", *values)
    code, out, err = rendered(*given)
    assert code == 0, err
    words = ("graphs.agg:Frontend", "-f", "configs/agg.yaml", "--name=demo", "--secret=shared", "--cache-claim=models")
    printed = machine.run("dynamo", "manifest", *words, "--namespace=ns", *flags)
    chart, manifest = (
        {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}
        for text in (out, printed.out)
    )
    only_here = {("ConfigMap", GRAPH)}
    if "discovery=etcd" not in values:
        only_here.add(("CustomResourceDefinition", "dynamodinstances.dynamod.dev"))  # helm reads it from crds/
    assert manifest.keys() == chart.keys() | only_here
    for key in chart:
        assert _comparable(manifest[key]) == _comparable(chart[key]), key


def _comparable(one: dict[str, Any]) -> Any:
    """A resource without what the two ways of making it say differently."""
    template = one.get("spec", {}).get("template")
    for metadata in (one["metadata"], template["metadata"] if template else {"labels": {}}):
        for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            metadata["labels"].pop(label, None)
    one["metadata"].pop("namespace", None)
    if template is None:
        return one
    one["spec"].pop("replicas")
    template["metadata"].pop("annotations", None)
    (container,) = template["spec"]["containers"]
    for key in ("name", "image", "imagePullPolicy", "command", "args"):
        container.pop(key, None)
    container["resources"] = container.get("resources") or {}
    container["env"].sort(key=lambda variable: variable["name"])
    for values in (container["volumeMounts"], template["spec"]["volumes"]):
        values[:] = sorted((value for value in values if value["name"] != "graph"), key=lambda value: value["name"])
    return one


def pod(plane: ControlPlane, name: str) -> str:
    """A pod that no kubelet runs: what owns a resource; its uid."""
    spec = {"containers": [{"name": "main", "image": "none"}], "nodeName": "nowhere"}
    content = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=content)
    return str(plane.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")["metadata"]["uid"])


def environment(plane: ControlPlane, folder: Path, name: str, uid: str, account: Path) -> dict[str, str]:
    where = folder / name
    where.mkdir(exist_ok=True)
    return {
        "DYNAMOD_CLUSTER": "auto",
        "DYNAMOD_NODE": name,
        "DYNAMOD_SOCKET": str(where / "d.sock"),
        "DYNAMOD_DISCOVERY": "kubernetes",
        "DYNAMOD_KUBERNETES_URL": plane.url,
        "DYNAMOD_KUBERNETES_ACCOUNT": str(account),
        "DYNAMOD_KUBERNETES_GRAPH": GRAPH,
        "DYNAMOD_TCP_ADDRESS": "127.0.0.1",
        "DYNAMOD_CLUSTER_SECRET": "0123456789abcdef" * 4,
        "DYNAMOD_TRUST": "require",
        "POD_NAME": name,
        "POD_NAMESPACE": NAMESPACE,
        "POD_UID": uid,
    }


def ready(plane: ControlPlane, uids: dict[str, str], but: str = "", graph: str = GRAPH) -> None:
    """As the controller of EndpointSlices writes it, which does not run here."""
    content = endpoint_slice({name: name != but for name in uids}, f"{graph}-pods-1")
    for number, one in enumerate(content["endpoints"]):
        one["addresses"] = [f"10.244.0.{number + 5}"]
        one["targetRef"] |= {"uid": uids[one["targetRef"]["name"]], "namespace": NAMESPACE}
    content["metadata"]["labels"] = {"dynamod.dev/graph": graph, "kubernetes.io/service-name": f"{graph}-pods"}
    content |= {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=content)


def mounted(plane: ControlPlane, folder: Path, account: str) -> Path:
    """The files that a kubelet mounts for a service account."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(plane.token(NAMESPACE, account))
    (folder / "namespace").write_text(NAMESPACE)
    (folder / "ca.crt").write_bytes(plane.ca.read_bytes())
    return folder


def test_two_workers_and_a_frontend_find_each_other_without_brokers(
    plane: ControlPlane, machine: Any, tmp_path: Path
) -> None:
    installed(plane)
    account = mounted(plane, tmp_path / "account", GRAPH)
    names = ["front", "w-0", "w-1"]
    uids = {name: pod(plane, name) for name in names}
    env = {name: environment(plane, Path(machine.folder), name, uids[name], account) for name in names}
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0, **env["front"])
    url = front.ready()
    for name in names[1:]:
        words = ("dynamo-run", "in=dyn://ns.backend.generate", "out=mocker", "sample")
        machine.start(*words, **env[name]).prints("ready")
    path = f"/apis/dynamod.dev/v1alpha1/namespaces/{NAMESPACE}/dynamodinstances"
    machine.until(lambda: len(plane.get(path)["items"]) == 3)
    assert machine.ask(url, "/health")[0] == 503, "no slice says that a worker is ready"
    ready(plane, uids)
    machine.until(lambda: "w-0" in machine.ask(url, "/health")[1] and "w-1" in machine.ask(url, "/health")[1], 20)
    fields = {"max_tokens": 300, "ignore_eos": True}
    alone = machine.chats(url, ["hello", "bye"], **fields)
    streams = [machine.stream(url, text, **fields) for text in ("hello", "bye")]
    plane.stop("kube-apiserver")
    rows = machine.raw("GET", "/v1/ps", socket_path=Path(env["w-0"]["DYNAMOD_SOCKET"]))[1]
    os.kill(next(row["pid"] for row in rows if row["component"] == "Worker"), 9)
    assert [one.read().text for one in streams] == alone, "a worker is killed while the API server is away"
    assert machine.chats(url, ["hello"], **fields) == alone[:1]
    plane.start_api()
    machine.until(lambda: machine.run("dynamo", "status", **env["front"]).out.count("not there") == 0, 40)
    ready(plane, uids, but="w-1")
    machine.until(lambda: "w-1" not in machine.ask(url, "/health")[1], 40)


def test_a_service_account_without_the_role_is_told_what_to_grant(
    plane: ControlPlane, machine: Any, tmp_path: Path
) -> None:
    plane.kubectl("create", "serviceaccount", "poor", "-n", NAMESPACE, check=False)
    account = mounted(plane, tmp_path / "poor", "poor")
    env = environment(plane, Path(machine.folder), "poor", pod(plane, "poor"), account)
    started = machine.start("dynamo-run", "in=dyn://ns.backend.generate", "out=echo", "sample", **env)
    started.prints("ready")
    grants = "grant the verb 'list' on 'endpointslices' of the API group 'discovery.k8s.io' to its service account"
    other = "grant the verb 'list' on 'dynamodinstances' of the API group 'dynamod.dev' to its service account"
    machine.until(lambda: any(one in machine.run("dynamo", "status", **env).out for one in (grants, other)), 20)
