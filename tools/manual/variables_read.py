"""The search for the environment variables that the code reads."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dynamod
from dynamod.extension.settings import options
from dynamod.http.settings import VARIABLES as OF_FRONTENDS
from dynamod.ingress.settings import VARIABLES as OF_PROCESSORS
from dynamod.runtime.liveness import SETTINGS

PACKAGE = Path(dynamod.__path__[0])

_FAMILY = re.compile(
    r"_?(DYN|DYNAMO|DYNAMOD|NATS|ETCD|HF|VLLM|SGLANG|NIXL|OMP|RAYON|OPENBLAS|CUDA|XDG|KUBERNETES|TORCH\w*|GRPC|GGML|"
    r"OPENAI|ANTHROPIC|LISTEN|WATCHDOG|NOTIFY)_[A-Z0-9_]*[A-Z0-9]"
)
"""Names that are variables wherever they stand alone in a text of the code."""
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
_ENVIRONMENTS = {"environ", "env", "variables", "wanted"}
_READERS = {"get", "pop", "setdefault", "getenv"}
_PAIRS = ("NATS_AUTH", "ETCD_AUTH")
"""Beginnings of names to which `user_and_password` adds `_USERNAME` and `_PASSWORD`."""


@cache
def read() -> dict[str, list[str]]:
    """Each variable that the code names, with the files."""
    found: dict[str, set[str]] = {}
    constants = _constants()
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in names(_parsed(path), constants):
            found.setdefault(name, set()).add(str(path.relative_to(PACKAGE)))
    for prefix in _PAIRS:
        files = found.pop(prefix)
        for name in (f"{prefix}_USERNAME", f"{prefix}_PASSWORD"):
            found.setdefault(name, set()).update(files)
    for key in SETTINGS:
        found.setdefault(f"DYNAMOD_{key.upper()}", set()).add("runtime/liveness.py")
    for name in (*OF_FRONTENDS, *OF_PROCESSORS, *(one.variable for one in options().values() if one.variable)):
        found.setdefault(name, set()).add("settings")
    return {name: sorted(files) for name, files in found.items()}


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _constants() -> dict[str, set[str]]:
    """Texts of constants, by the name of the constant, of all modules."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in _parsed(path).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                    found.setdefault(name, set()).add(text)
    return found


def names(tree: ast.Module, constants: dict[str, set[str]]) -> Iterator[str]:
    """Each variable that a module names. `constants`: texts of constants, by name."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if _FAMILY.fullmatch(text):
                yield text
            case ast.Call(func=ast.Attribute(attr=attr, value=where), args=[first, *_]) if attr in _READERS:
                yield from _texts(where, first, constants)
            case ast.Subscript(value=where, slice=index):
                yield from _texts(where, index, constants)
            case ast.Compare(left=first, ops=[ast.In() | ast.NotIn()], comparators=[where]):  # codespell:ignore notin
                yield from _texts(where, first, constants)


def _texts(where: ast.expr, name: ast.expr, constants: dict[str, set[str]]) -> Iterator[str]:
    """The name of a variable that an expression reads from an environment; a constant may have it."""
    last = where.attr if isinstance(where, ast.Attribute) else getattr(where, "id", "")
    if last not in _ENVIRONMENTS and last != "os":
        return
    texts = {name.value} if isinstance(name, ast.Constant) else constants.get(getattr(name, "id", ""), set())
    yield from (text for text in texts if isinstance(text, str) and _NAME.fullmatch(text))
