"""The JSON schema of config files, for editors: `# yaml-language-server: $schema=...` at the top of a YAML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynamod.extension.installed import config_keys
from dynamod.graph.graph import Graph
from dynamod.graph.importing import Importer, shipped_root
from dynamod.graph.load import load_service
from dynamod.graph.options import PLACEMENTS
from dynamod.graph.typed import model_schema
from dynamod.graph.yamlgraph import GRAPH_KEYS, SERVICE_KEYS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TARGET = {"type": "string", "pattern": r"^\S+:\S+$", "description": "module.path:Class or path/to/file.py:Class"}
_COUNT = {"type": "integer", "minimum": 0}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """A mapping with these keys and no others."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **needed}


_RESOURCES = {
    "cpu": {"type": ["string", "integer"], "pattern": r"^\d+m?$"},
    "memory": {"type": ["string", "integer"], "pattern": r"^\d+([KMGTPE]i?)?$"},
    "gpu": {"type": ["string", "integer"], "pattern": r"^\d+$"},
}
_ENV = _object({"name": {"type": "string"}, "value": {}}, "name", "value")
_SECTION = {
    "ServiceArgs": {"$ref": "#/$defs/ServiceArgs"},
    "common-configs": {"type": "array", "items": {"type": "string"}},
}
_PROCESS = {
    "workers": {**_COUNT, "description": "processes of this service"},
    "resources": _object(_RESOURCES),
    "envs": {"oneOf": [{"type": "object"}, {"type": "array", "items": _ENV}]},
    "placement": {"enum": list(PLACEMENTS), "description": "the shared ingress process, or one of its own"},
    "nodes": {
        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
        "description": "names of the nodes on which it runs; default: each that serves the graph",
    },
    "python": {"type": "string", "description": "interpreter of its process, in an environment that has dynamod too"},
}


def schema(graphs: Sequence[Graph] | None = None) -> dict[str, Any]:
    """Schema of a config file, with typed sections for the services of `graphs` that declare a model."""
    defs: dict[str, Any] = {"ServiceArgs": _object(_PROCESS)}
    properties: dict[str, Any] = {
        "graph": {"oneOf": [_TARGET, _graph()]},
        **{key: dict(one.schema) for key, one in config_keys().items()},
        "Common": {"type": "object", "description": "values that services take by naming them in common-configs"},
    }
    typed: dict[str, list[Any]] = {}
    for graph in graphs or ():
        for name, model in _models(graph).items():
            section = _section(name, model, defs)
            if section not in typed.setdefault(name, []):
                typed[name].append(section)
    for name, sections in typed.items():
        properties[name] = sections[0] if len(sections) == 1 else {"anyOf": sections}
    return {
        "$schema": DRAFT,
        "title": "dynamod config",
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": {}},
        "additionalProperties": {"type": ["object", "null"], "properties": _SECTION},
        "$defs": defs,
    }


def _graph() -> dict[str, Any]:
    entry = _object({"class": _TARGET, "component": {"type": "string"}, **_PROCESS}, "class")
    names = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    link = {"oneOf": [{"type": "string", "pattern": "->"}, names]}
    properties: dict[str, Any] = {
        "services": {"type": "object", "minProperties": 1, "additionalProperties": {"oneOf": [_TARGET, entry]}},
        "links": {"oneOf": [{"type": "string"}, {"type": "array", "items": link}]},
        "root": {"type": "string"},
        "namespace": {"type": "string"},
    }
    assert set(properties) == set(GRAPH_KEYS)
    assert set(entry["properties"]) == set(SERVICE_KEYS)
    return _object(properties, "services")


def _models(graph: Graph) -> dict[str, Any]:
    """The config model per service, None for a service without one."""
    folders = {shipped_root(), *(Path(entry) for spec in graph.services.values() for entry in spec.sys_path)}
    with Importer(folders):
        return {name: load_service(spec).config_model for name, spec in graph.services.items()}


def _section(name: str, model: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if model is None:
        return {"type": ["object", "null"], "properties": _SECTION}
    body, inner = model_schema(model, f"#/$defs/{name}.{{name}}")
    defs |= {f"{name}.{one}": definition for one, definition in inner.items()}
    own: dict[str, Any] = {}
    for key, value in body.get("properties", {}).items():
        own |= {key: value, key.replace("_", "-"): value}  # both spellings are read
    return {
        "type": ["object", "null"],
        "title": name,
        **{key: body[key] for key in ("title", "description") if key in body},
        "properties": {**own, **_SECTION},
        # nothing is required here: a value may come from Common or the command line
        "additionalProperties": body.get("additionalProperties") is True,
    }
