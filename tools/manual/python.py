"""The page about the Python interface: a mkdocstrings entry for each public name of `dynamo.runtime`, `llm`, `sdk`."""

import importlib
from typing import Any

from .text import code, page, table

MODULES = {
    "dynamo.runtime": "Serve and call endpoints from a Python file with its own process.",
    "dynamo.llm": "Say which model an endpoint serves, and publish its KV cache and load.",
    "dynamo.sdk": "Decorators of graphs.",
}
"""The public modules, with what they are for."""


def python() -> str:
    """The page."""
    intro = (
        "The names are those of NVIDIA Dynamo. Import them from the modules below; everything else in the package "
        "`dynamod` may change with any release. [Your own engine](../tutorials/own-engine.md) and [your own "
        "graph](../tutorials/own-graph.md) are examples. A name of NVIDIA Dynamo that dynamod lacks is an ImportError "
        "that lists the names that exist."
    )
    parts = [_module(name, text) for name, text in MODULES.items()]
    return page("Python interface", intro, *parts)


def _module(name: str, text: str) -> str:
    module: Any = importlib.import_module(name)
    values = {public: getattr(module, public) for public in module.__all__}
    renamed = {public: value for public, value in values.items() if value.__name__ != public}
    rows = [(code(public), _first(value)) for public, value in renamed.items()]
    entries = [f"::: {value.__module__}.{public}" for public, value in values.items() if public not in renamed]
    more = [f"### More of {name}\n\n{table(('name', 'meaning'), rows)}"] if rows else []
    return "\n\n".join([f"## {name}", text, *entries, *more])


def _first(value: Any) -> str:
    return str(value.__doc__ or "").strip().partition("\n")[0]
