"""A DynamoGraphDeployment of both versions, v1beta1 and v1alpha1, as components with commands."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dynamod.graph.document import Document, Path
from dynamod.message.hints import known_hint

from .reading import Section

KIND = "DynamoGraphDeployment"
GROUP = "nvidia.com"
VERSIONS = ("v1beta1", "v1alpha1")
TYPES = ("frontend", "worker", "prefill", "decode", "planner", "epp")
GPU = re.compile(r"gpu|[a-z0-9.-]+/gpu")
"""Keys of `resources` that count GPUs."""
SECRET = "comes from a secret of the cluster; set its variables in the environment of dynamo serve"
ELSEWHERE = "comes from the cluster; set the variable in the environment of dynamo serve"
PODS = "is of pods, and has no effect here"
NOT_KEPT = "is not carried over"
IMAGE = "is not carried over: --image names an image of dynamod"
POD_KEYS = (
    *("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName", "schedulerName"),
    *("runtimeClassName", "imagePullSecrets", "volumes"),
)
"""What pods of dynamod take over of a pod's specification."""

Note = tuple[Path, str]
"""A path of the file, and what becomes of its value."""


@dataclass(kw_only=True)
class PodParts:
    """What a pod takes over of a component: values as core/v1 has them, which are not read here.

    `spec`: of the pod. `env`, `env_from`, `resources`, `mounts`: of the container `main`. `gpu`: name of the devices.
    `memory`: size of /dev/shm; empty: not said.
    """

    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    env: list[Any] = field(default_factory=list[Any])
    env_from: list[Any] = field(default_factory=list[Any])
    resources: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    mounts: list[Any] = field(default_factory=list[Any])
    gpu: str = "nvidia.com/gpu"
    memory: str = ""


@dataclass(kw_only=True)
class Component:
    """`path`: in the file. `words`: the command of the container `main`; empty: the default of the type.

    `words_at`: where the command stands. `pod`: empty unless the reader keeps what is of pods.
    """

    name: str
    path: Path
    type: str = ""
    replicas: int = 1
    gpus: int = 0
    words: Sequence[str] = ()
    words_at: Path = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    pod: PodParts = field(default_factory=PodParts)


@dataclass(kw_only=True)
class Deployment:
    """`name`: of the resource. `notes`: what is not carried over, in the order of the file."""

    name: str
    components: list[Component]
    notes: list[Note]


def read(document: Document, *, pods: bool = False) -> Deployment:
    """The deployment that a document is. Raises UserError with file, line and path.

    `pods`: for pods, which take over what one machine has no use for.
    """
    whole = Section(document, (), {key: document.data[key] for key in RESOURCE if key in document.data})
    version, what = whole.take("apiVersion", str) or "", whole.take("kind", str)
    if what != KIND:
        raise document.error(("kind",), f"{what!r} is no graph", f"known: {KIND}, of {GROUP}/{VERSIONS[0]}")
    known = [f"{GROUP}/{one}" for one in VERSIONS]
    if version not in known:
        raise document.error(("apiVersion",), f"unknown version {version!r}", known_hint(version, known, "versions"))
    metadata, spec, notes = whole.mapping("metadata"), whole.mapping("spec"), list[Note]()
    name = metadata.take("name", str) or ""
    metadata.drop("namespace", "labels", "annotations", "generateName")  # of the resource, not of the graph
    spec.drop("backendFramework")  # the command of each component says it
    reader = _Alpha(notes, pods) if version.endswith("v1alpha1") else _Beta(notes, pods)
    shared, references = reader.variables(spec, reader.env)
    components = reader.components(spec)
    if not components:
        raise spec.error(reader.key, "a graph needs at least one component")
    for one in components:
        one.env = {**shared, **one.env}
        one.pod.env = [*references, *one.pod.env]
    for path in whole.left():
        image = path[-1] == "image" and "initContainers" not in path
        notes.append((path, PODS if not pods else IMAGE if image else NOT_KEPT))
    return Deployment(name=name, components=components, notes=notes)


RESOURCE = ("apiVersion", "kind", "metadata", "spec")
"""The keys of the file."""


class _Beta:
    """v1beta1: a list of components, each with a pod template."""

    key, env = "components", "env"

    def __init__(self, notes: list[Note], pods: bool) -> None:
        self._notes, self._pods = notes, pods

    def components(self, spec: Section) -> list[Component]:
        """The components of the graph."""
        found = list[Component]()
        for one in spec.mappings(self.key):
            name = one.take("name", str)
            if not name:
                raise one.error("name", "a component needs a name")
            if any(other.name.lower() == name.lower() for other in found):
                raise one.error("name", f"there is another component '{name}'")
            found.append(self.component(name, one, one.take("type", str) or "worker"))
        return found

    def component(self, name: str, one: Section, type_: str) -> Component:
        """A component that the mapping describes."""
        if type_ not in TYPES:
            raise one.error("type", f"unknown type '{type_}'", known_hint(type_, TYPES, "types"))
        made = Component(name=name, path=one.path, type=type_)
        replicas = one.take("replicas", int)
        made.replicas = 1 if replicas is None else replicas
        if made.replicas < 0:
            raise one.error("replicas", f"{made.replicas} is too small", "give 0 or more")
        self._variables(made, one, self.env)
        if self._pods:
            self._pod(made, one.mapping("podTemplate", "spec"))
            made.pod.memory = one.take("sharedMemorySize", str) or ""
        containers = one.mapping("podTemplate", "spec").mappings("containers")
        mains = [each for each in containers if each.take("name", str) == "main"]
        for main in mains[:1]:
            self._container(made, main)
        one.mapping("podTemplate").drop("metadata")
        return made

    def _container(self, made: Component, main: Section) -> None:
        """The command, the variables and the devices of a container."""
        command, args = main.take("command", list) or [], main.take("args", list) or []
        made.words = _plain([str(word) for word in (*command, *args)])
        made.words_at = (*main.path, "args" if args else "command")
        main.drop("workingDir", "imagePullPolicy")
        self._variables(made, main, "env")
        if self._pods:
            made.pod.env_from += main.take("envFrom", list) or []
            made.pod.mounts += main.take("volumeMounts", list) or []
        for source in main.mappings("envFrom"):
            self._notes.append((source.path, SECRET))
            source.drop("secretRef", "configMapRef", "prefix")
        self._devices(made, main)

    def _devices(self, made: Component, one: Section) -> None:
        for side in ("limits", "requests"):
            amounts = one.mapping("resources", side)
            for key in amounts.unread():
                if GPU.fullmatch(key):
                    made.gpus = max(made.gpus, _count(amounts, key))
                    made.pod.gpu = key if "/" in key else made.pod.gpu
                elif self._pods and key not in ("custom", "gpuType"):
                    made.pod.resources.setdefault(side, {})[key] = amounts.any(key)

    def _pod(self, made: Component, spec: Section) -> None:
        """Where the pod goes, and its volumes."""
        made.pod.spec |= {key: value for key in POD_KEYS if (value := spec.any(key)) is not None}

    def _variables(self, made: Component, one: Section, key: str) -> None:
        values, references = self.variables(one, key)
        made.env |= values
        made.pod.env += references

    def variables(self, one: Section, key: str) -> tuple[dict[str, str], list[Any]]:
        """Variables with values, and the variables from elsewhere, which only pods have; here they are noted."""
        found, references = dict[str, str](), list[Any]()
        for entry in one.mappings(key):
            name, value = entry.take("name", str), entry.take("value", str)
            if name is None:
                raise entry.error("name", "a variable needs a name")
            if value is None and self._pods and (source := entry.take("valueFrom", dict)):
                references.append({"name": name, "valueFrom": source})
            elif value is None:
                entry.drop("valueFrom")
                self._notes.append((entry.path, f"{name} {ELSEWHERE}"))
            else:
                found[name] = value
        return found, references


class _Alpha(_Beta):
    """v1alpha1: services by name, each with the container `mainContainer`."""

    key, env = "services", "envs"

    def components(self, spec: Section) -> list[Component]:
        """The components of the graph."""
        found = list[Component]()
        for name, one in spec.mapping(self.key).members().items():
            part, sub = one.take("componentType", str) or "worker", one.take("subComponentType", str)
            made = self.component(name, one, part if sub is None else sub)
            secret = one.take("envFromSecret", str)
            if secret is not None and self._pods:
                made.pod.env_from.append({"secretRef": {"name": secret}})
            elif secret is not None:
                self._notes.append(((*one.path, "envFromSecret"), f"{secret} {SECRET}"))
            one.drop("dynamoNamespace")
            self._devices(made, one)
            self._container(made, one.mapping("extraPodSpec", "mainContainer"))
            if self._pods:
                self._pod(made, one.mapping("extraPodSpec"))
                memory = one.mapping("sharedMemory")
                made.pod.memory = "0" if memory.any("disabled") else memory.take("size", str) or ""
            found.append(made)
        return found


def _plain(words: Sequence[str]) -> Sequence[str]:
    """The words of a command, also of one that a shell runs."""
    if len(words) >= 2 and words[0].rpartition("/")[2] in ("sh", "bash") and words[1] in ("-c", "-lc", "-ec"):
        return shlex.split(" ".join(words[2:]).replace("\\\n", " "))
    return words


def _count(amounts: Section, key: str) -> int:
    value = amounts.any(key)
    if not str(value).isdecimal():
        raise amounts.error(key, f"expected a number of devices, got {value!r}")
    return int(str(value))
