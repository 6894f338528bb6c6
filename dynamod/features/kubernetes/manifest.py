"""A graph as resources of Kubernetes: the objects that the chart in `deploy/helm/dynamod` has, with the graph's config.

Pure. The frontend and its processor are a Deployment. Each other component is a StatefulSet, or a Deployment where a
planner scales it: only of a Deployment does the pod with least work leave.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from dynamod.daemon.groups import Group
from dynamod.graph.graph import FRONTEND, PROCESSOR, Graph, ServiceSpec
from dynamod.graph.service_config import SERVICE_ARGS, find_key
from dynamod.message.errors import UserError

from .deployment import PodParts
from .pods import CONFIG_FILE, ManifestSettings, Pod, access, all_pods, network, thing, workload

PLANNER, ON_DEMAND = "planner", "ondemand"
PORT = 8000
"""Of frontends, where the config says none."""
LONGEST = 52
"""Characters of a workload's name: pods have labels with eleven more."""
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`objects` in the order in which they are created. `notes`: what is not carried over, a line each."""

    objects: list[Object]
    notes: list[str] = field(default_factory=list[str])


def short(name: str) -> str:
    """The name of a component as resources have it: PrefillWorker is prefill-worker."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def manifest(graph: Graph, settings: ManifestSettings, parts: Mapping[str, PodParts] | None = None) -> Manifest:
    """The objects of a graph. `parts`: by component, what its pods take over from a DynamoGraphDeployment.

    Raises UserError for names that Kubernetes does not take.
    """
    notes, parts = list[str](), parts or {}
    members = [name for name in graph.services if not _inside(graph, name)]
    planned = {info.service for spec in graph.services.values() if _is(spec, PLANNER) for info in spec.depends.values()}
    _check_names(graph, settings, members)
    planned |= {one["component"] for one in _models(graph).values()}
    kinds = {name: "Deployment" if _front(graph, name) or name in planned else "StatefulSet" for name in members}
    for name, spec in graph.services.items():
        kinds |= {name: "Deployment"} if _is(spec, PLANNER) else {}
        if spec.nodes:
            notes.append(f"{name}.{SERVICE_ARGS}.nodes: nodes are pods; a nodeSelector says where pods run")
        if spec.python:
            notes.append(f"{name}.{SERVICE_ARGS}.python: {spec.python} is a program of this machine")
    config = _config(graph, settings, kinds)
    text = json.dumps(config, indent=1).replace("${", "$${")  # variables are filled in already
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    objects = [
        *access(settings, scaled=sorted({f"{kinds[one].lower()}s" for one in planned}), costs=bool(planned)),
        thing(settings, "v1", "ConfigMap", settings.full, data={CONFIG_FILE: text + "\n"}),
        all_pods(settings),
    ]
    for name in members:
        spec, front = graph.services[name], _front(graph, name)
        pod = Pod(
            name="frontend" if front else short(name),
            service=name,
            kind=kinds[name],
            replicas=_replicas(graph, name),
            port=_port(graph) if front else None,
            alone=front and bool(_models(graph)),
            gpus=spec.gpus,
            cost=name in planned,
            parts=parts.get(name, PodParts()),
            digest=digest,
        )
        objects += workload(settings, pod)
    return Manifest(objects=[*objects, network(settings, _port(graph))], notes=notes)


def _check_names(graph: Graph, settings: ManifestSettings, members: list[str]) -> None:
    seen = dict[str, str]()
    for name in members:
        own = "frontend" if _front(graph, name) else short(name)
        if own in seen:
            raise UserError(f"{name} and {seen[own]} would both be {settings.full}-{own}", "give one another name")
        seen[own] = name
        if len(full := f"{settings.full}-{own}") > LONGEST:
            raise UserError(f"{full} is longer than {LONGEST} characters", "give a shorter --name")


def _is(spec: ServiceSpec, kind: str) -> bool:
    return spec.component_kind == kind


def _front(graph: Graph, name: str) -> bool:
    return _is(graph.services[name], FRONTEND)


def _inside(graph: Graph, name: str) -> bool:
    """Whether the service runs in the pod of a frontend, or not at all."""
    spec = graph.services[name]
    fronts = [one for one in graph.services.values() if _is(one, FRONTEND)]
    inside = any(name in graph.only(front.name).services for front in fronts if front.name != name)
    return not spec.enabled or (spec.component_kind in (PROCESSOR, ON_DEMAND) and inside)


def _models(graph: Graph) -> dict[str, Any]:
    """Models on demand, each with its `component`."""
    sections = [graph.config.get(name, {}) for name, spec in graph.services.items() if _is(spec, ON_DEMAND)]
    return {name: model for section in sections for name, model in section.get("models", {}).items()}


def _replicas(graph: Graph, name: str) -> int:
    """Processes of one machine become pods; a frontend is asked by the processes of its processor, too."""
    return max(one.workers for one in graph.only(name).services.values() if one.enabled)


def _port(graph: Graph) -> int | None:
    """Where clients ask; a pod takes no free port, as one machine does for 0. Raises UserError."""
    places = (Group("", (one,), 1, 0).place() for one in graph.services.values() if _is(one, FRONTEND))
    return next((place[1] or PORT for place in places if place is not None), None)


def _config(graph: Graph, settings: ManifestSettings, kinds: Mapping[str, str]) -> dict[str, Any]:
    """The config of all pods: one process for each component, a frontend that listens on all addresses."""
    config = deepcopy(graph.config)
    by_name = ":" in graph.target and not _models(graph)  # whose services are made of the config
    for name, spec in graph.services.items():
        section: dict[str, Any] = config.setdefault(name, {}) or {}
        config[name] = section
        arguments = {key: value for key, value in (section.get(SERVICE_ARGS) or {}).items() if key != "nodes"}
        arguments.pop("python", None)
        if spec.workers != 1:
            arguments["workers"] = 1
        if arguments or SERVICE_ARGS in section:
            section[SERVICE_ARGS] = arguments
        if _is(spec, FRONTEND):
            _put(section, "host", "0.0.0.0")
            _put(section, "port", _port(graph))
        for model in section.get("models", {}).values() if _is(spec, ON_DEMAND) else ():
            model["workload"] = f"deployment/{settings.full}-{short(model['component'])}"
        if _is(spec, PLANNER):
            pools = (info.service for info in spec.depends.values())
            targets = {pool: f"{kinds[pool].lower()}/{settings.full}-{short(pool)}" for pool in pools if pool in kinds}
            _put(section, "environment", "kubernetes")
            _put(section, "kubernetes-deployments", targets)
        if not section:
            del config[name]
    return {"graph": graph.target if by_name else _services(graph), **config}


def _put(section: dict[str, Any], key: str, value: object) -> None:
    section[find_key(section, key) or key] = value


def _services(graph: Graph) -> dict[str, Any]:
    """The `graph:` of a config, for a graph without a target."""
    services = {name: dict(_entry(name, spec)) for name, spec in graph.services.items()}
    links = [f"{a} -> {b}" for a, b in graph.edges]
    return {"services": services, "links": links, "root": graph.root, "namespace": graph.namespace}


def _entry(name: str, spec: ServiceSpec) -> Iterator[tuple[str, Any]]:
    yield "class", spec.path
    if spec.component != name:
        yield "component", spec.component
    if spec.resources:
        yield "resources", {key: str(value) for key, value in spec.resources.items()}
    if spec.envs:
        yield "envs", [{"name": key, "value": value} for key, value in spec.envs.items()]
    yield "placement", spec.placement
