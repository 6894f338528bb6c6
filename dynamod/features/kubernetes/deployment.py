"""A DynamoGraphDeployment of both versions, v1beta1 and v1alpha1, as components with commands."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

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

Note = tuple[Path, str]
"""A path of the file, and what becomes of its value."""


@dataclass(kw_only=True)
class Component:
    """`path`: in the file. `words`: the command of the container `main`; empty: the default of the type.

    `words_at`: where the command stands. `notes`: what is not carried over.
    """

    name: str
    path: Path
    type: str = ""
    replicas: int = 1
    gpus: int = 0
    words: Sequence[str] = ()
    words_at: Path = ()
    env: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(kw_only=True)
class Deployment:
    """`notes`: what is not carried over, in the order of the file."""

    components: list[Component]
    notes: list[Note]


def read(document: Document) -> Deployment:
    """The deployment that a document is. Raises UserError with file, line and path."""
    whole = Section(document, (), {key: document.data[key] for key in RESOURCE if key in document.data})
    version, what = whole.take("apiVersion", str) or "", whole.take("kind", str)
    if what != KIND:
        raise document.error(("kind",), f"{what!r} is no graph", f"known: {KIND}, of {GROUP}/{VERSIONS[0]}")
    known = [f"{GROUP}/{one}" for one in VERSIONS]
    if version not in known:
        raise document.error(("apiVersion",), f"unknown version {version!r}", known_hint(version, known, "versions"))
    metadata, spec, notes = whole.mapping("metadata"), whole.mapping("spec"), list[Note]()
    metadata.drop("name", "namespace", "labels", "annotations", "generateName")  # the graph has the name of the file
    spec.drop("backendFramework")  # the command of each component says it
    reader = _Alpha(notes) if version.endswith("v1alpha1") else _Beta(notes)
    shared = reader.variables(spec, reader.env)
    components = reader.components(spec)
    if not components:
        raise spec.error(reader.key, "a graph needs at least one component")
    for one in components:
        one.env = {**shared, **one.env}
    notes += [(path, PODS) for path in whole.left()]
    return Deployment(components=components, notes=notes)


RESOURCE = ("apiVersion", "kind", "metadata", "spec")
"""The keys of the file."""


class _Beta:
    """v1beta1: a list of components, each with a pod template."""

    key, env = "components", "env"

    def __init__(self, notes: list[Note]) -> None:
        self._notes = notes

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
        made.env = self.variables(one, self.env)
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
        made.env |= self.variables(main, "env")
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

    def variables(self, one: Section, key: str) -> dict[str, str]:
        """Variables with values; the others are noted."""
        found = dict[str, str]()
        for entry in one.mappings(key):
            name, value = entry.take("name", str), entry.take("value", str)
            if name is None:
                raise entry.error("name", "a variable needs a name")
            if value is None:
                entry.drop("valueFrom")
                self._notes.append((entry.path, f"{name} {ELSEWHERE}"))
            else:
                found[name] = value
        return found


class _Alpha(_Beta):
    """v1alpha1: services by name, each with the container `mainContainer`."""

    key, env = "services", "envs"

    def components(self, spec: Section) -> list[Component]:
        """The components of the graph."""
        found = list[Component]()
        for name, one in spec.mapping(self.key).members().items():
            part, sub = one.take("componentType", str) or "worker", one.take("subComponentType", str)
            made = self.component(name, one, part if sub is None else sub)
            if (secret := one.take("envFromSecret", str)) is not None:
                self._notes.append(((*one.path, "envFromSecret"), f"{secret} {SECRET}"))
            one.drop("dynamoNamespace")
            self._devices(made, one)
            self._container(made, one.mapping("extraPodSpec", "mainContainer"))
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
