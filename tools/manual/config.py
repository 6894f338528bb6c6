"""The page about config files: each section with its keys, from the structs that read them."""

import json
from collections.abc import Mapping
from typing import Any

from dynamod.extension.settings import options
from dynamod.graph.load import load_graph
from dynamod.graph.schema import schema
from dynamod.http import settings as http
from dynamod.ingress import settings as ingress
from dynamod.runtime.liveness import SETTINGS as CLOCKS

from .text import code, page, table

SECTIONS = ("Frontend", "Processor", "Worker", "Planner")
GRAPHS = ("graphs.agg_planner:Frontend", "graphs.disagg_planner:Frontend")


def config() -> str:
    """The page of all sections."""
    intro = (
        "A config file is YAML. Each component has a section, and each key has one meaning, type and range. The "
        "command line sets the same keys as `--Component.key=value`. A hyphen and an underscore in a key are the same. "
        "Times are seconds. A key wins over its environment variable."
    )
    found = schema([load_graph(graph) for graph in GRAPHS])
    parts = ["## Every section\n\n" + _keys(found["$defs"]["ServiceArgs"]["properties"], "ServiceArgs.")]
    for name in SECTIONS:
        section = found["properties"].get(name)
        if section is not None:
            keys = {
                key: value for key, value in section["properties"].items() if "-" not in key and key != "ServiceArgs"
            }
            text = str(section.get("description", "")).partition("\n")[0]
            parts.append(f"## {name}\n\n{text}\n\n{_keys(keys, variables=variables(name))}")
    for name, definition in found["$defs"].items():
        if name != "ServiceArgs" and "." in name:
            parts.append(f"## {name}\n\n{_keys(definition.get('properties', {}))}")
    return page("Config keys", intro, *parts)


def variables(section: str) -> dict[str, str]:
    """The environment variables that give keys of a section, by key."""
    found = {key: f"DYNAMOD_{key.upper()}" for key in CLOCKS}
    if section == "Frontend":
        found |= {key: name for name, (key, _) in http.VARIABLES.items()} | {"metrics_prefix": "DYN_METRICS_PREFIX"}
        found |= {key: option.variable for key, option in options("frontend").items() if option.variable}
    if section == "Processor":
        found |= {key: name for name, key in ingress.VARIABLES.items()}
    return found


def _keys(properties: dict[str, Any], prefix: str = "", variables: Mapping[str, str] | None = None) -> str:
    rows = []
    for key, value in sorted(properties.items()):
        default = code(json.dumps(value["default"])) if value.get("default") not in (None, "") else ""
        text = str(value.get("description", ""))
        if variables is not None and key in variables:
            text += f" (environment: {code(variables[key])})"
        rows.append((code(prefix + key), _type(value), default, text))
    return table(("key", "type", "default", "meaning"), rows)


def _type(value: dict[str, Any]) -> str:
    """The type of a key in words, with its range."""
    if "enum" in value:
        return " or ".join(code(one) for one in value["enum"])
    if "$ref" in value:
        return f"section {value['$ref'].rpartition('/')[2]}"
    for way in ("anyOf", "oneOf"):
        if way in value:
            return " or ".join(dict.fromkeys(_type(one) for one in value[way] if one.get("type") != "null"))
    kind = value.get("type", "any value")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        kind = f"list of {_type(value.get('items', {}))}"
    return f"{kind}{_range(value)}"


def _range(value: dict[str, Any]) -> str:
    low, above = value.get("minimum"), value.get("exclusiveMinimum")
    high, below = value.get("maximum"), value.get("exclusiveMaximum")
    words = [f"from {low:g}"] if low is not None else [f"above {above:g}"] if above is not None else []
    words += [f"to {high:g}"] if high is not None else [f"below {below:g}"] if below is not None else []
    return " " + " ".join(words) if words else ""
