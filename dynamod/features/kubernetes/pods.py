"""Objects of pods as the chart in `deploy/helm/dynamod` renders them: workloads, services, roles, network."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from .brokers import ETCD, KUBERNETES, Brokers
from .deployment import PodParts
from .resources import INSTANCES, LABEL, SLICES
from .settings import COST_VARIABLE

CONFIG_FOLDER, CONFIG_FILE = "/etc/dynamod/graph", "graph.yaml"
CACHE_VARIABLE = "HF_HOME=/cache"
"""Of the library that downloads models, and the folder where the claim is mounted."""
USER = 10001
"""The user of the image, `deploy/Containerfile`."""
PROBES, FIRST, LAST = 9090, 7000, 7099
"""Ports: of probes, and of requests between pods."""
GRACE = 30
"""Seconds of a pod's end beyond the time for open answers."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """`name`: of the deployment. `secret`, `tls_secret`: secrets with the cluster secret, with certificates.

    Both empty: requests are not signed. `cache_claim`: a volume claim for downloaded models. `drain`: seconds for open
    answers when a pod ends. `brokers`: etcd and NATS, where pods use them.
    """

    name: str
    version: str
    namespace: str = ""
    image: str = ""
    secret: str = ""
    tls_secret: str = ""
    cache_claim: str = ""
    drain: int = 60
    brokers: Brokers = field(default_factory=Brokers)

    @property
    def full(self) -> str:
        """The name of all objects, as the chart makes it of the name of a release."""
        return self.name[:40].rstrip("-") if "dynamod" in self.name else f"{self.name[:32]}-dynamod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The pods of one component. `port`: for clients; None: there is none. `cost`: whether pods tell their load.

    `alone`: there is never a second one, since one process decides which models are loaded.
    """

    name: str
    service: str
    kind: str
    replicas: int
    port: int | None
    gpus: int
    cost: bool
    alone: bool
    parts: PodParts
    digest: str


def thing(
    settings: ManifestSettings, version: str, kind: str, name: str, component: str = "", **content: Any
) -> Object:
    """A resource with the labels of the deployment."""
    metadata: Object = {"name": name}
    if settings.namespace:
        metadata["namespace"] = settings.namespace
    metadata["labels"] = labels(settings, component)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def selector(settings: ManifestSettings, component: str = "") -> dict[str, str]:
    """Labels that select the pods of the deployment, or of a component."""
    return {LABEL: settings.full, **({"app.kubernetes.io/component": component} if component else {})}


def labels(settings: ManifestSettings, component: str = "") -> dict[str, str]:
    """All labels of a resource."""
    return selector(settings, component) | {
        "app.kubernetes.io/name": "dynamod",
        "app.kubernetes.io/instance": settings.name,
        "app.kubernetes.io/version": settings.version,
        "app.kubernetes.io/managed-by": "dynamo-manifest",
    }


def access(settings: ManifestSettings, *, scaled: Collection[str], costs: bool) -> list[Object]:
    """The service account with its role, where it needs one.

    `scaled`: workloads that planners scale. `costs`: pods tell their load.
    """
    rules: list[Object] = []
    if settings.brokers.etcd is None:
        verbs = ["list", "watch"]
        rules = [
            {"apiGroups": [SLICES.group], "resources": [SLICES.plural], "verbs": verbs},
            {
                "apiGroups": [INSTANCES.group],
                "resources": [INSTANCES.plural],
                "verbs": [*verbs, "create", "patch", "delete"],
            },
        ]
    if scaled:
        rules.append(
            {"apiGroups": ["apps"], "resources": [f"{one}/scale" for one in scaled], "verbs": ["get", "patch"]}
        )
    if costs:
        rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]})
    group, name = "rbac.authorization.k8s.io", settings.full
    subject = {"kind": "ServiceAccount", "name": name}
    if settings.namespace:
        subject["namespace"] = settings.namespace
    account = thing(settings, "v1", "ServiceAccount", name)
    if not rules:
        return [account]
    return [
        account,
        thing(settings, f"{group}/v1", "Role", name, rules=rules),
        thing(
            settings,
            f"{group}/v1",
            "RoleBinding",
            name,
            roleRef={"apiGroup": group, "kind": "Role", "name": name},
            subjects=[subject],
        ),
    ]


def all_pods(settings: ManifestSettings) -> Object:
    """The service whose EndpointSlices say which pods are ready."""
    ports = [{"name": "probes", "port": PROBES, "targetPort": "probes"}]
    spec = {"clusterIP": "None", "selector": selector(settings), "ports": ports}
    return thing(settings, "v1", "Service", f"{settings.full}-pods", spec=spec)


def network(settings: ManifestSettings, port: int | None) -> Object:
    """Requests and KV blocks come from pods of the deployment only, at any port: engines choose theirs."""
    own = {"podSelector": {"matchLabels": selector(settings)}}
    open_to_all = [{"protocol": "TCP", "port": one} for one in (port, PROBES) if one is not None]
    ingress = [
        {"from": [own]},
        {"ports": open_to_all},
    ]
    spec = {"podSelector": {"matchLabels": selector(settings)}, "policyTypes": ["Ingress"], "ingress": ingress}
    return thing(settings, "networking.k8s.io/v1", "NetworkPolicy", settings.full, spec=spec)


def workload(settings: ManifestSettings, pod: Pod) -> list[Object]:
    """The Deployment or StatefulSet of a component; for a frontend with its service and disruption budget."""
    name = f"{settings.full}-{pod.name}"
    metadata = {"labels": labels(settings, pod.name), "annotations": {"dynamod.dev/config": pod.digest}}
    spec: Object = {
        "replicas": pod.replicas,
        "selector": {"matchLabels": selector(settings, pod.name)},
        "template": {"metadata": metadata, "spec": _pod(settings, pod)},
    }
    if pod.kind == "StatefulSet":
        spec |= {"serviceName": f"{settings.full}-pods", "podManagementPolicy": "Parallel"}
    elif pod.alone:
        spec["strategy"] = {"type": "Recreate"}
    else:
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    made = [thing(settings, "apps/v1", pod.kind, name, pod.name, spec=spec)]
    if pod.port is not None:
        ports = [{"name": "http", "port": pod.port, "targetPort": "http"}]
        service = {"type": "ClusterIP", "selector": selector(settings, pod.name), "ports": ports}
        front = thing(settings, "v1", "Service", settings.full, pod.name, spec=service)
        del front["metadata"]["labels"][LABEL]  # its EndpointSlices are for clients, not for discovery
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": selector(settings, pod.name)}}
        made += [front, thing(settings, "policy/v1", "PodDisruptionBudget", name, spec=budget)]
    return made


def _pod(settings: ManifestSettings, pod: Pod) -> Object:
    ports = [{"name": "probes", "containerPort": PROBES}]
    if pod.port is not None:
        ports.insert(0, {"name": "http", "containerPort": pod.port})
    container: Object = {
        "name": pod.name,
        "image": settings.image,
        "command": ["dynamo", "serve"],
        "args": [
            *(f"--config-file={CONFIG_FOLDER}/{CONFIG_FILE}", f"--service-name={pod.service}"),
            f"--timeout={settings.drain}",
        ],
        "env": _env(settings, pod),
        **({"envFrom": pod.parts.env_from} if pod.parts.env_from else {}),
        "ports": ports,
        **_probes(),
        "resources": _resources(pod),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [*_mounts(settings, pod), *pod.parts.mounts],
    }
    given = dict(pod.parts.spec)
    volumes = [*_volumes(settings, pod), *given.pop("volumes", [])]
    profile = {"type": "RuntimeDefault"}
    return {
        "serviceAccountName": settings.full,
        "terminationGracePeriodSeconds": settings.drain + GRACE,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER, "seccompProfile": profile},
        "containers": [container],
        "volumes": volumes,
        **given,
    }


def _env(settings: ManifestSettings, pod: Pod) -> list[Object]:
    fields = {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_UID": "metadata.uid",
        "DYNAMOD_NODE": "metadata.name",
    }
    values = {}
    if settings.brokers.nats is None:
        fields["DYNAMOD_TCP_ADDRESS"] = "status.podIP"
        values["DYNAMOD_TCP_PORTS"] = f"{FIRST}-{LAST}"
    values |= {
        "DYNAMOD_DISCOVERY": KUBERNETES if settings.brokers.etcd is None else ETCD,
        "DYNAMOD_KUBERNETES_GRAPH": settings.full,
        "DYN_SYSTEM_HOST": "0.0.0.0",
        "DYN_SYSTEM_PORT": str(PROBES),
        "HOME": "/home/dynamod",
    }
    if pod.cost:
        values[COST_VARIABLE] = "true"
    if settings.tls_secret:
        for name, file in (("CA_CERT", "ca.crt"), ("CERT", "tls.crt"), ("KEY", "tls.key")):
            values[f"DYN_TCP_TLS_{name}_PATH"] = f"/etc/dynamod/tls/{file}"
    secret: list[Object] = []
    if settings.secret:
        key = {"secretKeyRef": {"name": settings.secret, "key": "secret"}}
        secret = [{"name": "DYNAMOD_CLUSTER_SECRET", "valueFrom": key}]
        values["DYNAMOD_TRUST"] = "require"
    if settings.cache_claim:
        name, _, folder = CACHE_VARIABLE.partition("=")
        values[name] = folder
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *secret,
        *({"name": name, "value": value} for name, value in values.items()),
        *settings.brokers.env(),
        *pod.parts.env,
    ]


def _probes() -> Object:
    ready, live = ({"httpGet": {"path": f"/health/{one}", "port": "probes"}} for one in ("ready", "live"))
    return {
        "startupProbe": {**ready, "periodSeconds": 5, "failureThreshold": 1440},
        "livenessProbe": {**live, "periodSeconds": 5, "timeoutSeconds": 4, "failureThreshold": 3},
        "readinessProbe": {**ready, "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2},
    }


def _resources(pod: Pod) -> Object:
    found: Object = {side: dict(amounts) for side, amounts in pod.parts.resources.items()}
    if pod.gpus:
        found["limits"] = {**found.get("limits", {}), pod.parts.gpu: pod.gpus}
    return found


def _mounts(settings: ManifestSettings, pod: Pod) -> list[Object]:
    places = {"run": "/tmp", "home": "/home/dynamod"}
    places |= {"cache": "/cache"} if settings.cache_claim else {}
    places |= {"shm": "/dev/shm"} if _memory(pod) else {}
    found: list[Object] = [{"name": name, "mountPath": path} for name, path in places.items()]
    found.append({"name": "graph", "mountPath": CONFIG_FOLDER, "readOnly": True})
    if settings.tls_secret:
        found.append({"name": "tls", "mountPath": "/etc/dynamod/tls", "readOnly": True})
    return [*found, *settings.brokers.mounts()]


def _volumes(settings: ManifestSettings, pod: Pod) -> list[Object]:
    found: list[Object] = [{"name": "run", "emptyDir": {}}, {"name": "home", "emptyDir": {}}]
    found.append({"name": "graph", "configMap": {"name": settings.full}})
    if settings.cache_claim:
        found.append({"name": "cache", "persistentVolumeClaim": {"claimName": settings.cache_claim}})
    if settings.tls_secret:
        found.append({"name": "tls", "secret": {"secretName": settings.tls_secret}})
    if memory := _memory(pod):
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": memory}})
    return [*found, *settings.brokers.volumes()]


def _memory(pod: Pod) -> str:
    return "" if pod.parts.memory in ("", "0") else pod.parts.memory
