"""Settings that name files, whoever reads them: relative to the folder where they were given."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from .graph import Graph

PATHS = {"model", "model_path", "model_config", "model_config_path", "api_key_file", "tls_cert_path", "tls_key_path"}
"""Settings that may name a file."""
SHIPPED = ("sample", "sample.gguf")  # models by name, even where a folder is called so


def absolute(graph: Graph, folder: Path) -> Graph:
    """The graph with settings that name files relative to `folder` made absolute: the daemon works elsewhere."""
    services = {name: replace(spec, config=_absolute(spec.config, folder)) for name, spec in graph.services.items()}
    config = {
        name: _absolute(section, folder) if isinstance(section, dict) else section
        for name, section in graph.config.items()
    }
    return replace(graph, services=services, config=config)


def _absolute(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    settings = {key: _engine(value, folder) if key == "engine" else value for key, value in settings.items()}
    return {
        key: str(folder / value)
        if key.replace("-", "_") in PATHS
        and isinstance(value, str)
        and value
        and value not in SHIPPED
        and (folder / value).exists()
        else value
        for key, value in settings.items()
    }


def _engine(value: Any, folder: Path) -> Any:
    """`pystr:my_engine.py`: an engine that is a file."""
    name, _, file = value.partition(":") if isinstance(value, str) else ("", "", "")
    return f"{name}:{folder / file}" if file and (folder / file).exists() else value
