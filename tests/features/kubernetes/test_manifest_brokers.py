"""etcd and NATS in manifests: what pods get, and which combinations of flags are refused."""

from typing import Any

import pytest

from dynamod.message.errors import UserError

from .test_manifest import DISAGG, container

SHARED = (*DISAGG, "--secret=shared")
WORKER = ("StatefulSet", "disagg-dynamod-worker")
ETCD = ("--discovery", "etcd", "--etcd-endpoints", "https://example.org:2379,https://example.org:2381")
NATS = ("--requests", "nats", "--nats-server", "nats://nats:4222")
CHOICE = {
    *("DYNAMOD_TCP_ADDRESS", "DYNAMOD_TCP_PORTS", "DYNAMOD_DISCOVERY", "DYNAMOD_KUBERNETES_GRAPH"),
    *("ETCD_ENDPOINTS", "ETCD_AUTH_USERNAME", "ETCD_AUTH_PASSWORD"),
    *("ETCD_AUTH_CA", "ETCD_AUTH_CLIENT_CERT", "ETCD_AUTH_CLIENT_KEY"),
    *("NATS_SERVER", "NATS_AUTH_USERNAME", "NATS_AUTH_PASSWORD", "NATS_TLS_CA", "NATS_TLS_CERT", "NATS_TLS_KEY"),
}
"""Variables that say where pods find each other, and how requests reach them."""


def choice(found: Any, kind: str = WORKER[0], name: str = WORKER[1]) -> dict[str, Any]:
    """These variables of a workload, with their values or sources."""
    env = container(found, kind, name)["env"]
    assert len({one["name"] for one in env}) == len(env), "each has one value"
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in env if one["name"] in CHOICE}


def rules(found: Any) -> list[Any]:
    return [rule for (kind, _), one in found.items() if kind == "Role" for rule in one["rules"]]


def test_the_default_needs_neither(printed: Any) -> None:
    found, _ = printed(*SHARED)
    assert choice(found) == {
        "DYNAMOD_TCP_ADDRESS": {"fieldRef": {"fieldPath": "status.podIP"}},
        "DYNAMOD_TCP_PORTS": "7000-7099",
        "DYNAMOD_DISCOVERY": "kubernetes",
        "DYNAMOD_KUBERNETES_GRAPH": "disagg-dynamod",
    }
    said, _ = printed(*SHARED, "--discovery=kubernetes", "--requests=tcp")
    assert said == found


def test_both_with_passwords_and_certificates_of_secrets(printed: Any) -> None:
    words = (
        "--etcd-auth-secret=user",
        "--etcd-tls-secret=of-etcd",
        "--nats-auth-secret=me",
        "--nats-tls-secret=of-nats",
    )
    found, _ = printed(*SHARED, *ETCD, *NATS, *words)

    def key(secret: str, name: str) -> Any:
        return {"secretKeyRef": {"name": secret, "key": name}}

    wanted = {
        "DYNAMOD_DISCOVERY": "etcd",
        "DYNAMOD_KUBERNETES_GRAPH": "disagg-dynamod",
        "ETCD_ENDPOINTS": "https://example.org:2379,https://example.org:2381",
        "ETCD_AUTH_USERNAME": key("user", "username"),
        "ETCD_AUTH_PASSWORD": key("user", "password"),
        "ETCD_AUTH_CA": "/etc/dynamod/etcd/ca.crt",
        "ETCD_AUTH_CLIENT_CERT": "/etc/dynamod/etcd/tls.crt",
        "ETCD_AUTH_CLIENT_KEY": "/etc/dynamod/etcd/tls.key",
        "NATS_SERVER": "nats://nats:4222",
        "NATS_AUTH_USERNAME": key("me", "username"),
        "NATS_AUTH_PASSWORD": key("me", "password"),
        "NATS_TLS_CA": "/etc/dynamod/nats/ca.crt",
        "NATS_TLS_CERT": "/etc/dynamod/nats/tls.crt",
        "NATS_TLS_KEY": "/etc/dynamod/nats/tls.key",
    }
    for kind, name in (WORKER, ("Deployment", "disagg-dynamod-frontend")):
        assert choice(found, kind, name) == wanted
        spec = found[kind, name]["spec"]["template"]["spec"]
        mounts = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
        assert (mounts["etcd"], mounts["nats"]) == ("/etc/dynamod/etcd", "/etc/dynamod/nats")
        secrets = {one["name"]: one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
        assert secrets == {"etcd": "of-etcd", "nats": "of-nats"}


def test_with_etcd_pods_ask_the_api_server_for_nothing(printed: Any) -> None:
    found, _ = printed(*SHARED, *ETCD)
    assert {"DYNAMOD_TCP_ADDRESS", "ETCD_ENDPOINTS"} <= choice(found).keys()
    kinds = {kind for kind, _ in found}
    assert "ServiceAccount" in kinds
    assert not kinds & {"Role", "RoleBinding", "CustomResourceDefinition"}


def test_with_etcd_a_planner_may_still_scale(printed: Any) -> None:
    planned = ("graphs.disagg_planner:Frontend", "-f", "configs/disagg_planner.yaml", "--name=p", "--secret=shared")
    found, _ = printed(*planned, *ETCD)
    assert rules(found) == [
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    ]


def test_nats_alone_leaves_discovery_to_the_api_server(printed: Any) -> None:
    found, _ = printed(*SHARED, *NATS)
    assert choice(found) == {
        "DYNAMOD_DISCOVERY": "kubernetes",
        "DYNAMOD_KUBERNETES_GRAPH": "disagg-dynamod",
        "NATS_SERVER": "nats://nats:4222",
    }
    assert {*rules(found)[0]["resources"], *rules(found)[1]["resources"]} == {"endpointslices", "dynamodinstances"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--discovery=consul",), "--discovery is 'consul'; one of: kubernetes, etcd"),
        (("--requests=http",), "--requests is 'http'; one of: tcp, nats"),
        (("--discovery=etcd",), "--discovery etcd needs --etcd-endpoints; for example --etcd-endpoints etcd:2379"),
        (("--requests=nats",), "--requests nats needs --nats-server; for example --nats-server nats://nats:4222"),
        (
            ("--etcd-endpoints=etcd:2379",),
            "--etcd-endpoints has no effect with --discovery kubernetes; add --discovery etcd, or leave",
        ),
        (("--nats-auth-secret=x",), "--nats-auth-secret has no effect with --requests tcp; add --requests nats"),
        (("--etcd-tls-secret=x",), "--etcd-tls-secret has no effect with --discovery kubernetes"),
        (("--discovery=etcd", "--etcd-endpoints=ftp://e:1"), "--etcd-endpoints: ETCD_ENDPOINTS names 'ftp://e:1'"),
        (
            ("--discovery=etcd", "--etcd-endpoints=http://localhost:1", "--etcd-tls-secret=x"),
            "--etcd-tls-secret is given, and --etcd-endpoints has no TLS endpoint; write https://",
        ),
        (("--discovery=etcd", "--etcd-endpoints=,"), "--etcd-endpoints: no member is named"),
        (("--requests=nats", "--nats-server=,"), "--nats-server: no server is named"),
        (("--requests=nats", "--nats-server=http://localhost"), "--nats-server: NATS_SERVER names 'http://localhost'"),
        (
            ("--requests=nats", "--nats-server=nats://me:word@n"),
            "--nats-server holds a password, which every reader of the manifest would see; create a secret",
        ),
    ],
)
def test_wrong_combinations_are_one_line(printed: Any, words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError) as caught:
        printed(*SHARED, *words)
    assert says in caught.value.line()
    assert "word@" not in caught.value.line()


def test_requests_over_nats_are_signed(printed: Any) -> None:
    with pytest.raises(UserError, match="--tls-secret is for requests over TCP") as caught:
        printed(*DISAGG, *NATS, "--tls-secret=pair")
    assert caught.value.hint == "give --secret, too"
    found, _ = printed(*SHARED, *NATS, "--tls-secret=pair")
    env = {one["name"] for one in container(found, *WORKER)["env"]}
    assert {"DYNAMOD_CLUSTER_SECRET", "DYN_TCP_TLS_CERT_PATH"} <= env, "certificates are for KV blocks then"
