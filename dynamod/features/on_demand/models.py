"""`models:` at the top of a config: each entry as a worker component without processes, alongside `graphs.models`.

models:
  small: {engine: llamacpp, model: small.gguf, args: {n_ctx: 4096}, ttl: 5m}    # name for clients: settings
budget: {models: 2}

`engine`, `model`, `args` and `worker` (its further section) are the worker's. All other keys are the processor's, which
decides what is loaded.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from dynamod.graph.config import service_args
from dynamod.graph.document import Document, Path
from dynamod.graph.service_config import SERVICE_ARGS
from dynamod.message.hints import kind

MODELS, BUDGET, PROCESSOR = "models", "budget", "Processor"
DEFAULT = "graphs.models:Frontend"
ON_DEMAND = "ondemand"
"""The kind of the component Processor there, and of `dynamo-run` with several models."""
_WORKER = {"engine": "engine", "model": "model", "args": "engine_args"}
_MORE = "worker"


def expand(document: Document, wanted: object) -> tuple[Document, str | None]:
    """As `expanded`, and the target of the graph. `wanted`: what command or file name as the graph."""
    target = wanted if isinstance(wanted, str) else DEFAULT if wanted is None else None
    return expanded(document, target), target


def expanded(document: Document, target: object) -> Document:
    """The document with `models:` as a graph and sections; unchanged without. Raises UserError with file and line.

    `target`: whose module has the services Frontend, Processor and Worker.
    """
    data = document.data
    if MODELS not in data:
        return document
    models = data[MODELS]
    if not isinstance(models, dict) or not models:
        raise document.error((MODELS,), f"expected a mapping of names to settings, got {kind(models)}")
    if not isinstance(target, str) or ":" not in target:
        raise document.error(("graph",), "a config with models needs no graph", "leave `graph:` out")
    module, _, frontend = target.rpartition(":")
    names = components(models, taken={frontend, PROCESSOR, "Common", "graph", MODELS, BUDGET, *data})
    services: dict[str, Any] = {name: f"{module}:{name}" for name in (frontend, PROCESSOR)}
    sections, origins, entries = dict[str, Any](), dict(document.origins), dict[str, Any]()
    for name, entry in cast("dict[str, Any]", models).items():
        if not isinstance(entry, dict):
            raise document.error((MODELS, name), f"expected a mapping, got {kind(entry)}")
        component = names[name]
        sections[component], entries[name] = _split(document, name, cast("dict[str, Any]", entry), origins, component)
        services[component] = {"class": f"{module}:Worker", "workers": 0}
    processor = {**cast("dict[str, Any]", data.get(PROCESSOR) or {}), MODELS: entries, BUDGET: data.get(BUDGET) or {}}
    origins.setdefault((PROCESSOR,), origins.get((MODELS,), document.source))
    links = [f"{frontend} -> {PROCESSOR}", *(f"{PROCESSOR} -> {component}" for component in names.values())]
    for section in (frontend, PROCESSOR):
        if service_args(document, section).get("workers", 1) != 1:
            raise document.error((section, SERVICE_ARGS, "workers"), "one process decides which models are loaded", "1")
    rest = {key: value for key, value in data.items() if key not in (MODELS, BUDGET)}
    graph = {"services": services, "links": links}
    return replace(document, data={**rest, "graph": graph, PROCESSOR: processor, **sections}, origins=origins)


def _split(
    document: Document, name: str, entry: dict[str, Any], origins: dict[Path, str], component: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The section of the worker, and what is left for the processor."""
    more = entry.get(_MORE) or {}
    if not isinstance(more, dict):
        raise document.error((MODELS, name, _MORE), f"expected a mapping, got {kind(more)}")
    doubled = next((key for key in ("served_model_name", *_WORKER.values()) if key in more), None)
    if doubled is not None:
        raise document.error(
            (MODELS, name, _MORE, doubled), "this key stands next to `worker:`", "see engine, model, args"
        )
    section = {_WORKER[key]: value for key, value in entry.items() if key in _WORKER}
    section |= {"served_model_name": name, **cast("dict[str, Any]", more)}
    origins[(component,)] = origins.get((MODELS, name), document.source)
    for key in entry.keys() & _WORKER.keys():
        origins[(component, _WORKER[key])] = origins.get((MODELS, name, key), document.source)
    for path in [path for path in origins if path[:3] == (MODELS, name, _MORE)]:
        origins[(component, *path[3:])] = origins[path]
    if isinstance(args := section.get(SERVICE_ARGS), dict) and "workers" in args:
        path = (MODELS, name, _MORE, SERVICE_ARGS, "workers")
        raise document.error(path, "a model on demand has one process", "leave it out")
    rest = {key: value for key, value in entry.items() if key not in (*_WORKER, _MORE)}
    return section, {**rest, "component": component}


def components(models: Iterable[str], taken: set[str]) -> dict[str, str]:
    """A component for each model: its name with what cannot stand in an address replaced."""
    found: dict[str, str] = {}
    for name in models:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "model"
        component, number = base, 2
        while component in taken:
            component, number = f"{base}-{number}", number + 1
        taken.add(component)
        found[name] = component
    return found
