"""From a topology and a configuration to the finished description.

What holds, weakest first: the decorator, the service's entry in a YAML graph, `ServiceArgs` of its section.
"""

import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import Any, cast

from dynamod.graph.build import Node, Topology
from dynamod.graph.config import check_sections, component_config, service_args
from dynamod.graph.document import Document
from dynamod.graph.graph import DependsInfo, EndpointInfo, Graph, ServiceSpec
from dynamod.graph.importing import lasting
from dynamod.graph.options import default_placement
from dynamod.graph.service import Service
from dynamod.message.errors import UserError


def describe(
    found: Topology, document: Document, namespace: str | None, sys_path: tuple[str, ...], target: str
) -> Graph:
    """Apply a configuration to a topology."""
    check_sections(document, found.known)
    specs = {node.name: _spec(node, found, document, namespace, sys_path) for node in found.nodes.values()}
    spaces = {spec.namespace: spec.name for spec in specs.values()}
    if len(spaces) > 1:
        listed = ", ".join(f"{name} in '{space}'" for space, name in sorted(spaces.items()))
        problem = f"all services of a graph must be in one namespace: {listed}"
        raise UserError(problem, 'use one dynamo={"namespace": ...}')
    config = {name: part for name, part in document.data.items() if name != "graph" and not name.startswith("x-")}
    return Graph(found.root, specs, next(iter(spaces)), found.edges, target, document.source, config)


def _spec(
    node: Node, found: Topology, document: Document, namespace: str | None, sys_path: tuple[str, ...]
) -> ServiceSpec:
    service, args = node.service, service_args(document, node.name)
    chosen = {**node.settings, **args}
    resources = {**service.resources, **node.settings.get("resources", {}), **args.get("resources", {})}
    placement = chosen.get("placement") or (service.placement if resources == service.resources else None)
    path, file, code = _origin(service)
    python = chosen.get("python", "")
    if python and chosen.get("placement") == "ingress":
        problem = f"{node.name}: python: a service in the ingress process has the interpreter of the others there"
        raise UserError(problem, "leave placement out, or set placement: own")
    return ServiceSpec(
        name=node.name,
        path=path,
        file=file,
        sys_path=sys_path,
        code=code,
        namespace=namespace or service.namespace,
        component=_component(node),
        enabled=service.dynamo.enabled,
        endpoints={
            name: EndpointInfo(name, info.function, tuple(map(str, info.transports)), info.http_method, info.streams)
            for name, info in service.endpoints.items()
        },
        depends={name: _depends(other, namespace) for name, other in found.depends[node.name].items()},
        workers=chosen.get("workers", service.workers),
        resources=resources,
        envs={**service.envs, **node.settings.get("envs", {}), **args.get("envs", {})},
        placement=placement or ("own" if python else default_placement(resources, service.dynamo.component_type)),
        nodes=chosen.get("nodes", ()),
        python=python,
        component_kind=service.actor,
        component_type=service.dynamo.component_type or "",
        config=component_config(document, node.name, service.config_model),
    )


def _depends(node: Node, namespace: str | None) -> DependsInfo:
    service = node.service
    return DependsInfo(node.name, namespace or service.namespace, _component(node), tuple(service.endpoints))


def _component(node: Node) -> str:
    return node.settings.get("component") or node.service.dynamo.name or node.name


def _origin(service: Service[Any]) -> tuple[str, str, str]:
    """`(module:Class, file, hash of the file)`: how another process finds it."""
    module, qualname = sys.modules.get(service.inner.__module__), service.inner.__qualname__
    if module is None:
        raise UserError(f"service {service.name}: its module {service.inner.__module__} is not loaded")
    found = functools.reduce(lambda inside, part: getattr(inside, part, None), qualname.split("."), cast("Any", module))
    if found is not service:  # `Worker = service(...)(_Worker)`: another name leads to it
        qualname = next((name for name, value in vars(module).items() if value is service), qualname)
    file = os.path.abspath(module.__file__) if getattr(module, "__file__", None) and module.__file__ else ""
    try:
        code = hashlib.sha1(Path(file).read_bytes(), usedforsecurity=False).hexdigest()[:12] if file else ""
    except OSError:
        code = ""
    return f"{module.__name__}:{qualname}", lasting(file), code
