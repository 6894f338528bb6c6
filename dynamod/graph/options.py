"""Checks of the settings of a process in `@service(...)` and `ServiceArgs`: resources, environment, placement.

Each function takes a value as a user wrote it and returns it in one normal form, or raises `UserError`; the caller
puts file and path in front.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal, cast

from dynamod.message.errors import UserError
from dynamod.message.hints import kind, known_hint

Placement = Literal["ingress", "own"]
PLACEMENTS: tuple[Placement, ...] = ("ingress", "own")

DYNAMO_KEYS = {"enabled": bool, "name": str, "namespace": str, "custom_lease": object, "component_type": str}
ENGINE_TYPES = frozenset({"worker", "prefill", "decode", "planner"})
"""Component types that get a process of their own even when they ask for no GPU."""

_FORMS = {
    "cpu": (re.compile(r"\d+m?"), "digits, or digits and 'm' for thousandths"),
    "memory": (re.compile(r"\d+(Ki|Mi|Gi|Ti|Pi|Ei|K|M|G|T|P|E)?"), "digits and one of Ki Mi Gi Ti Pi Ei K M G T P E"),
    "gpu": (re.compile(r"\d+"), "digits"),
}


@dataclass(frozen=True)
class LeaseConfig:
    """A lease of the service's own. `ttl`: seconds."""

    ttl: int = 1


@dataclass(frozen=True)
class DynamoOptions:
    """The `dynamo={...}` part of `@service`. `name`: the component name on the wire, when it is not the class name."""

    enabled: bool = True
    name: str | None = None
    namespace: str = "dynamo"
    custom_lease: LeaseConfig | None = None
    component_type: str | None = None


def mapping(value: object) -> dict[str, Any]:
    """A plain dict of a mapping, a pydantic model or a dataclass: all three are written in seed-era code."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in cast("Mapping[object, Any]", value).items()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return cast("dict[str, Any]", dump())
    raise UserError(f"expected a mapping, got {kind(value)}")


def check_dynamo(value: object) -> DynamoOptions:
    """The `dynamo` mapping of `@service`; unknown keys are errors that list the known ones."""
    given = {key: item for key, item in mapping(value or {}).items() if item is not None}
    for key, item in given.items():
        _known(key, DYNAMO_KEYS)
        expected = DYNAMO_KEYS[key]
        if not isinstance(item, expected):
            raise UserError(f"{key}: expected {kind(expected())}, got {kind(item)}")
        if key in ("name", "namespace") and not re.fullmatch(r"[A-Za-z0-9_-]+", str(item)):
            # both become parts of `namespace.component.endpoint`
            raise UserError(f"{key}: '{item}' may hold only letters, digits, '_' and '-'")
    if "custom_lease" in given:
        lease = mapping(given["custom_lease"])
        for key in lease:
            _known(key, ("ttl",), "custom_lease: ")
        if not isinstance(lease.get("ttl", 1), int):
            raise UserError("custom_lease.ttl: expected an integer (seconds)")
        given["custom_lease"] = LeaseConfig(**lease)
    return DynamoOptions(**given)


def _known(key: str, known: Iterable[str], where: str = "") -> None:
    if key not in (known := list(known)):
        raise UserError(f"{where}unknown key '{key}'", known_hint(key, known))


def check_resources(value: object) -> dict[str, str | int]:
    """`{"cpu": "10", "memory": "20Gi", "gpu": 1}`; cpu and memory come back as strings, gpu as a count."""
    checked: dict[str, str | int] = {}
    for key, item in mapping(value or {}).items():
        _known(key, _FORMS, "resources: ")
        if item is None:
            continue
        pattern, form = _FORMS[key]
        if isinstance(item, bool) or not isinstance(item, str | int) or not pattern.fullmatch(str(item)):
            raise UserError(f"resources.{key}: '{item}' is not {form}")
        checked[key] = int(item) if key == "gpu" else str(item)
    return checked


def check_workers(value: object) -> int:
    """A number of processes; 0 keeps a service in the graph without starting it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"workers: expected an integer, got {kind(value)} ({value!r})")
    if value < 0:
        raise UserError(f"workers: expected 0 or more, got {value}", "0 keeps the service without a process")
    return value


def check_envs(value: object) -> dict[str, str]:
    """Environment as `[{name, value}, ...]` or as a mapping. Values become text: the environment knows nothing else."""
    try:
        entries = [mapping(entry) for entry in value] if isinstance(value, list | tuple) else None
        given = mapping(value or {}) if entries is None else {}
    except UserError as error:
        raise UserError(f"envs: {error}") from None
    for entry in entries or ():
        if set(entry) != {"name", "value"} or not isinstance(entry["name"], str):
            raise UserError("envs: each entry needs exactly 'name' and 'value'", "known keys: name, value")
        given[entry["name"]] = entry["value"]
    return {name: _env_text(item) for name, item in given.items()}


def _env_text(value: object) -> str:
    """Booleans as YAML writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def check_nodes(value: object) -> tuple[str, ...]:
    """Names of the nodes on which a service runs: one, or a list of them."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(name, str) and name for name in found) or not found:
        raise UserError(f"nodes: expected the name of a node or a list of them, got {kind(value)} ({value!r})")
    return tuple(dict.fromkeys(cast("list[str]", found)))


def check_placement(value: object) -> Placement | None:
    """None leaves the choice to `default_placement`."""
    if value is None:
        return None
    if value not in PLACEMENTS:
        raise UserError(f"placement: '{value}' is unknown", known_hint(str(value), PLACEMENTS, "known placements"))
    return value


def check_python(value: object) -> str:
    """The Python interpreter of a process: a path, or a name that is looked up in PATH."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"python: expected the path of an interpreter, got {kind(value)} ({value!r})")
    return os.path.expanduser(value)


PROCESS_CHECKS: dict[str, Callable[[object], Any]] = {
    "workers": check_workers,
    "resources": check_resources,
    "envs": check_envs,
    "placement": check_placement,
    "nodes": check_nodes,
    "python": check_python,
}
"""Settings of a service's processes in a config, and the check of each."""


def default_placement(resources: Mapping[str, str | int], component_type: str | None) -> Placement:
    """A service with an accelerator or an engine has its own process; the others share the ingress process."""
    return "own" if resources.get("gpu") or component_type in ENGINE_TYPES else "ingress"
