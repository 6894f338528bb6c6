"""What is read of the resources of the API server, and the resource that a pod writes of itself."""

from typing import Any, NamedTuple

import msgspec

GROUP, VERSION = "dynamod.dev", "v1alpha1"
LABEL = "dynamod.dev/graph"
"""Pods, services and resources of one deployment have this label; EndpointSlices take it from their service."""


class Kind(NamedTuple):
    """A kind of resource as the API names it. `group`: empty for the core. `part`: a subresource."""

    kind: str
    plural: str
    group: str
    version: str
    part: str = ""

    def path(self, namespace: str, name: str = "") -> str:
        """Where the resources of a namespace are, or one of them."""
        api = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"{api}/namespaces/{namespace}/{self.plural}"
        return "/".join([place, *filter(None, [name, self.part])])

    @property
    def granted(self) -> str:
        """As the rules of roles write it."""
        return f"{self.plural}/{self.part}" if self.part else self.plural

    @property
    def resource(self) -> str:
        """As `kubectl auth can-i` writes it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


INSTANCES = Kind("DynamodInstance", "dynamodinstances", GROUP, VERSION)
SLICES = Kind("EndpointSlice", "endpointslices", "discovery.k8s.io", "v1")
PODS = Kind("Pod", "pods", "", "v1")
SCALES = {
    "deployment": Kind("Deployment", "deployments", "apps", "v1", "scale"),
    "statefulset": Kind("StatefulSet", "statefulsets", "apps", "v1", "scale"),
    "dgdsa": Kind(
        *("DynamoGraphDeploymentScalingAdapter", "dynamographdeploymentscalingadapters"),
        *("nvidia.com", "v1alpha1", "scale"),
    ),
}
"""Kinds that have replicas, by the word before `/NAME` in settings."""


class Owner(msgspec.Struct, frozen=True):
    """The owner of a resource, or the pod of an endpoint."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of every resource."""

    name: str
    resource_version: str = ""
    owner_references: tuple[Owner, ...] = ()


class Held(msgspec.Struct, frozen=True):
    """`keys`: the keys of the registry that the pod's node holds, with their values, which are JSON or text."""

    keys: dict[str, str]
    node: str = ""


class Instance(msgspec.Struct, frozen=True):
    """A DynamodInstance: one per pod, with the name of the pod."""

    metadata: Metadata
    spec: Held

    @property
    def pod(self) -> str:
        """The uid of the pod that owns the resource; empty for a resource that no pod owns."""
        return next((one.uid for one in self.metadata.owner_references if one.kind == "Pod"), "")


class Conditions(msgspec.Struct, frozen=True):
    """Of an endpoint. `ready` None counts as ready, as the API says."""

    ready: bool | None = None


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One pod of a service."""

    conditions: Conditions = Conditions()
    target_ref: Owner | None = None


class Slice(msgspec.Struct, frozen=True):
    """An EndpointSlice."""

    metadata: Metadata
    endpoints: tuple[Endpoint, ...] | None = None

    def ready(self) -> set[str]:
        """The uids of the pods that are ready."""
        return {
            one.target_ref.uid
            for one in self.endpoints or ()
            if one.target_ref is not None and one.target_ref.kind == "Pod" and one.conditions.ready is not False
        }


def own_resource(pod: str, uid: str, graph: str, held: Held) -> dict[str, Any]:
    """The resource of this pod, which is collected with the pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": INSTANCES.kind,
        "metadata": {"name": pod, "labels": {LABEL: graph}, "ownerReferences": [owner]},
        "spec": {"node": held.node, "keys": held.keys},
    }
