"""The chart, rendered by a real helm, which refuses wrong values."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from .control_plane import FOLDER

CHART = Path(__file__).parents[2] / "deploy/helm/dynamod"
ALL = (
    *("security.secretName=shared", "security.tlsSecretName=pair", "podMonitor.enabled=true", "cache.enabled=true"),
    *("serviceMonitor.enabled=true", "frontend.autoscaling.enabled=true", "workers.Worker.gpus=2"),
    *("workers.Worker.sharedMemory=8Gi", "workers.PrefillWorker.engine=mocker", "workers.PrefillWorker.model=sample"),
)


def helm() -> str:
    found = shutil.which("helm") or shutil.which("helm", path=os.environ.get(FOLDER, ""))
    if found is None:
        pytest.skip("no helm here: tests/kubernetes/run_real.sh builds one")
    return found


def rendered(*values: str, namespace: str = "ns", release: str = "demo") -> tuple[int, str, str]:
    words = [helm(), "template", release, str(CHART), "--kube-version=1.36.0", f"--namespace={namespace}"]
    words += [word for value in values for word in ("--set", value)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def objects(*values: str) -> dict[tuple[str, str], Any]:
    code, out, err = rendered(*values)
    assert code == 0, err
    found = [one for one in yaml.safe_load_all(out) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_helm_lints_the_chart() -> None:
    words = [helm(), "lint", "--strict", str(CHART), "--set", "security.secretName=shared", "--kube-version=1.36.0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pods_have_probes_a_place_and_time_to_drain() -> None:
    found = objects(*ALL, "drainSeconds=100")
    pods = {
        name: one["spec"]["template"]["spec"]
        for (kind, name), one in found.items()
        if "template" in one.get("spec", {})
    }
    assert sorted(pods) == ["demo-dynamod-frontend", "demo-dynamod-prefill-worker", "demo-dynamod-worker"]
    for pod in pods.values():
        (container,) = pod["containers"]
        assert pod["terminationGracePeriodSeconds"] == 130
        assert pod["securityContext"]["runAsNonRoot"]
        assert {container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")} == {
            "/health/live",
            "/health/ready",
        }
        env = {one["name"]: one for one in container["env"]}
        assert {"POD_NAME", "POD_UID", "POD_NAMESPACE", "DYNAMOD_TCP_ADDRESS", "DYNAMOD_CLUSTER_SECRET"} <= env.keys()
        assert env["DYNAMOD_DISCOVERY"]["value"] == "kubernetes"
        assert env["DYNAMOD_TRUST"]["value"] == "require"
    worker = pods["demo-dynamod-worker"]["containers"][0]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert "--http-host=0.0.0.0" in pods["demo-dynamod-frontend"]["containers"][0]["args"]


def test_the_role_has_what_discovery_asks_for_and_no_more() -> None:
    (role,) = [one for (kind, _), one in objects(*ALL).items() if kind == "Role"]
    assert {(*rule["resources"], *rule["verbs"]) for rule in role["rules"]} == {
        ("endpointslices", "list", "watch"),
        ("dynamodinstances", "list", "watch", "create", "patch", "delete"),
    }


def test_pods_of_a_deployment_tell_their_work() -> None:
    found = objects("security.secretName=shared", "workers.Worker.kind=Deployment")
    (role,) = [one for (kind, _), one in found.items() if kind == "Role"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]} in role["rules"]
    spec = found["Deployment", "demo-dynamod-worker"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert {"name": "DYNAMOD_KUBERNETES_COST", "value": "true"} in container["env"]
    assert "--timeout=60" in container["args"]
    assert "serviceName" not in spec


BROKERS = (
    *(
        "security.secretName=shared",
        "discovery=etcd",
        "etcd.endpoints=https://example.org:2379",
        "etcd.authSecretName=user",
    ),
    *("etcd.tlsSecretName=of-etcd", "requests=nats", "nats.server=tls://nats:4222", "nats.tlsSecretName=of-nats"),
)


def test_etcd_and_nats_are_the_other_choice() -> None:
    """Pods then ask the API server for nothing, so there is no role."""
    found = objects(*BROKERS)
    assert not [kind for kind, _ in found if kind.startswith("Role")]
    for kind, name in (("Deployment", "demo-dynamod-frontend"), ("StatefulSet", "demo-dynamod-worker")):
        pod = found[kind, name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        env = {one["name"]: one.get("value", "") for one in container["env"]}
        assert env["DYNAMOD_DISCOVERY"] == "etcd"
        assert (env["ETCD_ENDPOINTS"], env["NATS_SERVER"]) == ("https://example.org:2379", "tls://nats:4222")
        assert {"ETCD_AUTH_USERNAME", "ETCD_AUTH_PASSWORD", "DYNAMOD_CLUSTER_SECRET"} <= env.keys()
        assert not [one for one in env if one.startswith(("DYNAMOD_TCP", "NATS_AUTH"))]
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert env["ETCD_AUTH_CA"] == mounts["etcd"] + "/ca.crt"
        assert env["NATS_TLS_KEY"] == mounts["nats"] + "/tls.key"
        secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
        assert secrets == {"etcd": "of-etcd", "nats": "of-nats"}


@pytest.mark.parametrize(
    ("values", "names", "role"),
    [
        ("discovery=etcd,etcd.endpoints=e:2379", {"ETCD_ENDPOINTS", "DYNAMOD_TCP_ADDRESS"}, False),
        ("requests=nats,nats.server=nats://n:4222", {"NATS_SERVER", "DYNAMOD_KUBERNETES_GRAPH"}, True),
        (
            "discovery=etcd,etcd.endpoints=e:2379,workers.Worker.kind=Deployment",
            {"DYNAMOD_KUBERNETES_COST"},
            True,
        ),
    ],
)
def test_discovery_and_requests_are_chosen_apart(values: str, names: set[str], role: bool) -> None:
    found = objects("security.secretName=shared", "env[0].name=OWN", "env[0].value=1", *values.split(","))
    worker = next(one for (_, name), one in found.items() if name == "demo-dynamod-worker")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert names | {"OWN"} <= {one["name"] for one in container["env"]}
    assert bool([kind for kind, _ in found if kind == "Role"]) == role


@pytest.mark.parametrize(("mode", "says"), [("require", None), ("accept", "accept"), ("off", "off"), ("false", "off")])
def test_the_mode_of_tls_and_its_files_are_values(mode: str, says: str | None) -> None:
    """`false` is what YAML makes of a bare off."""
    given = ("security.secretName=shared", "security.tlsSecretName=pair", "security.tlsServerName=pods")
    found = objects(*given, f"security.tlsMode={mode}", "security.tlsRevokedKey=ca.crl")
    for kind, name in (("Deployment", "demo-dynamod-frontend"), ("StatefulSet", "demo-dynamod-worker")):
        pod = found[kind, name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        env = {one["name"]: one.get("value") for one in container["env"] if "TLS" in one["name"]}
        assert env.pop("DYNAMOD_TCP_TLS", None) == says
        assert env == {
            "DYN_TCP_TLS_CA_CERT_PATH": "/etc/dynamod/tls/ca.crt",
            "DYN_TCP_TLS_CERT_PATH": "/etc/dynamod/tls/tls.crt",
            "DYN_TCP_TLS_KEY_PATH": "/etc/dynamod/tls/tls.key",
            "DYN_TCP_TLS_SERVER_NAME": "pods",
            "DYNAMOD_TCP_TLS_CRL": "/etc/dynamod/tls/ca.crl",
        }
        assert {"name": "tls", "secret": {"secretName": "pair"}} in pod["volumes"]


def test_pods_of_a_deployment_reach_each_other_at_all_ports() -> None:
    """KV blocks and the sockets of engines are at ports that the engine chooses."""
    (policy,) = [one for (kind, _), one in objects(*ALL).items() if kind == "NetworkPolicy"]
    own, others = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"dynamod.dev/graph": "demo-dynamod"}}}]}
    assert [one["port"] for one in others["ports"]] == [8000, 9090]


def test_labels_of_services_reach_the_slices_that_discovery_reads() -> None:
    found = objects(*ALL)
    services = [one for (kind, _), one in found.items() if kind == "Service"]
    labelled = [one["metadata"]["name"] for one in services if "dynamod.dev/graph" in one["metadata"]["labels"]]
    assert labelled == ["demo-dynamod-pods"], "one service has all pods; the other has clients"
    pods = found["StatefulSet", "demo-dynamod-worker"]["spec"]["template"]
    env = {one["name"]: one.get("value") for one in pods["spec"]["containers"][0]["env"]}
    assert env["DYNAMOD_KUBERNETES_GRAPH"] == pods["metadata"]["labels"]["dynamod.dev/graph"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("drainSeconds=60", "set secretName or tlsSecretName"),
        ("drainSeconds=0", "/drainSeconds"),
        ("discovery=consul", "at '/discovery': value must be one of 'kubernetes', 'etcd'"),
        ("security.allowNone=true,discovery=etcd", "etcd.endpoints: discovery is etcd, so name the members"),
        ("security.allowNone=true,requests=nats", "nats.server: requests is nats, so name the server"),
        (
            "security.tlsSecretName=pair,requests=nats,nats.server=nats://n:4222",
            "security.secretName: requests over NATS are signed with it",
        ),
        (
            "security.tlsSecretName=pair,security.tlsMode=accept",
            "security.tlsMode: with accept pods take requests without a certificate, so set secretName, too",
        ),
        ("security.tlsSecretName=pair,security.tlsMode=on", "at '/security/tlsMode': value must be one of"),
        ("security.secretName=s,security.tlsRevokedKey=crl", "security.tlsRevokedKey: goes with tlsSecretName"),
        ("workers.Worker.gpu=1", "additional properties 'gpu' not allowed"),
        ("workers.Worker.endpoint=http", "/workers/Worker/endpoint"),
    ],
)
def test_wrong_values_name_the_key(value: str, says: str) -> None:
    code, _, err = rendered(*value.split(","))
    assert code != 0
    assert says in err


def test_the_schema_has_all_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {*values} <= {*schema["properties"]}
    worker = schema["definitions"]["worker"]["properties"]
    assert {*values["workers"]["Worker"]} == {*worker}
