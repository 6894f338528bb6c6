"""Settings that name files, in any component: relative to the folder where they were given."""

import contextlib
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from dynamod.extension.settings import options

from .graph import Graph

PATHS = {"engine", "model", "model_path", "model_config", "model_config_path", "chat_template"} | {
    *("api_key_file", "client_keys_file", "tls_cert_path", "tls_key_path", "tls_client_ca_cert_path")
}
"""Settings of the core that may name a file."""
ADAPTERS = "lora"
"""The setting whose texts have a path after their first `=`, and whose objects have it as `path`."""
SHIPPED = ("sample", "sample.gguf")  # models by name, even where a folder is called so


def absolute(graph: Graph, folder: Path) -> Graph:
    """The graph with settings that name files relative to `folder` made absolute: the daemon works elsewhere."""
    services = {
        name: replace(spec, config=_absolute(spec.config, folder), python=_program(spec.python, folder))
        for name, spec in graph.services.items()
    }
    config = {
        name: _absolute(section, folder) if isinstance(section, dict) else section
        for name, section in graph.config.items()
    }
    return replace(graph, services=services, config=config)


def _program(python: str, folder: Path) -> str:
    """A name without a slash is looked up in PATH. Links stay: that of an environment is what makes it one."""
    return os.path.abspath(folder / python) if "/" in python else python


@cache
def _paths() -> frozenset[str]:
    """Settings of features that may name a file."""
    return frozenset(name for name, option in options().items() if option.metavar in ("FILE", "FOLDER"))


def _absolute(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    return {key: _setting(key.replace("-", "_"), value, folder) for key, value in settings.items()}


def _setting(key: str, value: Any, folder: Path) -> Any:
    """One value; of `engine` the file after the colon, as in `pystr:my_engine.py`."""
    if key == ADAPTERS:
        return _adapters(value, folder)
    if not isinstance(value, str) or key not in PATHS | _paths() or value in SHIPPED or "{" in value:
        return value
    before, colon, file = value.partition(":") if key == "engine" else ("", "", value)
    return f"{before}{colon}{folder / file}" if file and (folder / file).exists() else value


def _adapters(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_adapters(one, folder) for one in value]
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        return {**value, "path": _setting("model_path", value["path"], folder)}
    if isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError):  # the component that reads the setting refuses it
            return _adapters(json.loads(value), folder)
    elif isinstance(value, str):
        name, sign, path = value.partition("=")
        return f"{name}{sign}{_setting('model_path', path, folder)}"
    return value
