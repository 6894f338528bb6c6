"""The configuration of a graph: where it comes from and what each service gets of it.

Later wins: the YAML file, then overrides of the command line; env DYN_DEPLOYMENT_CONFIG, when set, replaces both.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from dynamod.graph.document import Document, Path, read_document
from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.graph.options import PROCESS_CHECKS, check_envs
from dynamod.graph.overrides import deep_merge, parse_overrides
from dynamod.graph.service_config import COMMON, COMMON_CONFIGS, ENV, SERVICE_ARGS, find_key, merge_common
from dynamod.graph.typed import validate
from dynamod.message.errors import UserError
from dynamod.message.hints import kind, known_hint, names

DEPLOYMENT_ENV = "DYN_DEPLOYMENT_CONFIG"
GRAPH = "graph"

log = logging.getLogger("dynamod.graph")


def read_config(text: str, source: str, overrides: Sequence[str], environ: Mapping[str, str]) -> Document:
    """Everything above in one document. Raises UserError."""
    if deployment := environ.get(DEPLOYMENT_ENV):
        ignored = [what for what, there in ((source, source), ("the command line", overrides)) if there]
        if ignored:
            log.warning("%s overrides %s", DEPLOYMENT_ENV, " and ".join(ignored))
        document = read_document(deployment, DEPLOYMENT_ENV, environ)
        below = read_document(text, source, environ)
        if GRAPH in below.data:  # it configures services; which graph is still the file's
            origins = {path: origin for path, origin in below.origins.items() if path[:1] == (GRAPH,)}
            data = {GRAPH: below.data[GRAPH], **document.data}
            document = replace(document, data=data, origins={**origins, **document.origins})
        return _normal_envs(document)
    document = _normal_envs(read_document(text, source, environ))
    over = _respelled(parse_overrides(overrides), document.data)
    origins = dict(document.origins)
    _mark(origins, over, ())
    return Document(deep_merge(document.data, over), origins, source)


def check_sections(document: Document, known: Collection[str]) -> None:
    """Every section is a mapping and belongs to a service of the graph, or is Common, `graph` or `x-...`."""
    for name, section in document.data.items():
        if name == GRAPH or name.startswith("x-"):
            continue
        if name not in (COMMON, *known):
            hint = known_hint(name, [*known, COMMON], "sections known")
            raise document.error((name,), "no such service in the graph", hint)
        if section is not None and not isinstance(section, dict):
            raise document.error((name,), f"expected a mapping, got {kind(section)}")


def service_args(document: Document, name: str) -> dict[str, Any]:
    """The `ServiceArgs` of one service, checked. Raises UserError."""
    raw: object = _section(document, name).get(SERVICE_ARGS) or {}
    path = (name, SERVICE_ARGS)
    if not isinstance(raw, dict):
        raise document.error(path, f"expected a mapping, got {kind(raw)}", f"known keys: {names(PROCESS_CHECKS)}")
    return process_settings(document, path, cast("dict[str, Any]", raw))


def process_settings(
    document: Document, path: Path, raw: Mapping[str, Any], others: Sequence[str] = ()
) -> dict[str, Any]:
    """The keys of PROCESS_CHECKS that `raw`, found at `path`, has; checked. `others` it may have. Raises UserError."""
    document.only(path, raw, (*PROCESS_CHECKS, *others))
    settings: dict[str, Any] = {}
    for key, check in PROCESS_CHECKS.items():
        if raw.get(key) is None:
            continue
        try:
            settings[key] = check(raw[key])
        except UserError as error:
            head, _, problem = str(error).partition(": ")  # "resources.gpu: ...": its key becomes part of the path
            inner = tuple(head.split("."))
            if inner[0] != key:
                inner, problem = (key,), str(error)
            hint = error.hint or f"known keys: {names(PROCESS_CHECKS)}"
            raise document.error((*path, *inner), problem, hint) from None
    return settings


def component_config(document: Document, name: str, model: type | None) -> dict[str, Any]:
    """What reaches the component: common keys merged in, checked when the service declares a model.

    Keys and values stay as written: the process that uses them makes the model (`Service.parse_config`).
    """
    section, common = _section(document, name), _section(document, COMMON)
    listed: object = section.get(COMMON_CONFIGS) or []
    path = (name, COMMON_CONFIGS)
    if not isinstance(listed, list) or not all(isinstance(key, str) for key in cast("list[object]", listed)):
        problem = f"expected a list of Common keys, got {kind(listed)}"
        raise document.error(path, problem, f"known keys: {names(common)}")
    for key in cast("list[str]", listed):
        if find_key(common, key) is None:
            raise document.error(path, f"'{key}' is not in Common", known_hint(key, common, "keys of Common"))
    merged = merge_common(common, section)
    if model is not None:

        def fail(inner: Path, problem: str, hint: str) -> UserError:
            if not inner:
                return document.error((name,), problem, hint)
            key, shared = find_key(section, inner[0]), find_key(common, inner[0])
            if key is None and shared is not None:
                return document.error((COMMON, shared, *inner[1:]), f"{problem} (used by {name})", hint)
            return document.error((name, key or inner[0], *inner[1:]), problem, hint)

        validate(model, merged, name, fail)
    return merged


def dry_run_text(graph: Graph) -> str:
    """What `--dry-run` prints: the configuration, readable, and as children get it, without API keys.

    A graph of `dynamo-run` has no file: the settings of its services and their addresses.
    """
    if graph.config:
        shown = _without_keys(graph.config)
        more = f"Environment Variable that would be set:\n{ENV}={json.dumps(shown)}"
    else:
        shown = _without_keys({name: _as_section(spec) for name, spec in graph.services.items()})
        addresses = [
            f"{spec.name} dyn://{spec.namespace}.{spec.component}.{endpoint}"
            for spec in graph.services.values()
            for endpoint in spec.endpoints
        ]
        more = "Addresses:\n" + "\n".join(addresses) if addresses else ""
    return f"Service Configuration:\n{json.dumps(shown, indent=2)}\n\n{more}".rstrip()


def _as_section(spec: ServiceSpec) -> dict[str, Any]:
    return {**spec.config, **({SERVICE_ARGS: {"python": spec.python}} if spec.python else {})}


def _without_keys(value: Any) -> Any:
    if isinstance(value, dict):
        secret = {key for key in value if str(key).replace("-", "_") == "api_keys" and value[key]}
        return {key: "***" if key in secret else _without_keys(one) for key, one in value.items()}
    return [_without_keys(one) for one in value] if isinstance(value, list) else value


def _section(document: Document, name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", document.data.get(name) or {})


def _normal_envs(document: Document) -> Document:
    """`envs` lists as mappings, so that `--S.ServiceArgs.envs.KEY=value` merges over them."""
    data = dict(document.data)
    for name, section in document.data.items():
        args: object = cast("dict[str, Any]", section).get(SERVICE_ARGS) if isinstance(section, dict) else None
        if isinstance(args, dict) and isinstance(args.get("envs"), list):
            try:
                envs = check_envs(args["envs"])
            except UserError as error:
                path, problem = (name, SERVICE_ARGS, "envs"), str(error).removeprefix("envs: ")
                raise document.error(path, problem, error.hint) from None
            data[name] = {**section, SERVICE_ARGS: {**args, "envs": envs}}
    return replace(document, data=data)


def _respelled(over: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with `-` and `_` as the file has them, so that `--W.block_size=1` replaces its `block-size`."""
    result: dict[str, Any] = {}
    for name, section in over.items():
        if not isinstance(section, dict) or not isinstance(below.get(name), dict) or name in (SERVICE_ARGS, GRAPH):
            result[name] = section
            continue
        here = cast("dict[str, Any]", below[name])
        keys = {find_key(here, key) or key: value for key, value in cast("dict[str, Any]", section).items()}
        result[name] = _respelled(keys, here)
    return result


def _mark(origins: dict[Path, str], over: Mapping[str, Any], path: Path) -> None:
    """Note what comes from the command line: its values, and sections that stand nowhere else."""
    for key, value in over.items():
        inner = (*path, key)
        if isinstance(value, dict) and value:
            origins.setdefault(inner, "command line")
            _mark(origins, cast("dict[str, Any]", value), inner)
        else:
            origins[inner] = "command line"
