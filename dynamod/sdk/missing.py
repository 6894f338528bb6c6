"""Names of NVIDIA Dynamo that dynamod does not have: the ImportError lists the names that there are."""

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any


def missing(module: str, known: Iterable[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module of names: the ImportError for an unknown name lists the known names."""
    names = ", ".join(sorted(known))

    def lookup(name: str) -> Any:
        if name.startswith("__") or importlib.util.find_spec(f"{module}.{name}") is not None:  # it can be imported
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ImportError(f"{module} has no {name} here; it has: {names}", name=name)

    return lookup
