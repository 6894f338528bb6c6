"""Measures of the code: lines of files, methods and attributes of classes, arguments of constructors, import circles.

`test_structure.py` holds the limits and the table of exceptions.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

RECORDS = {"Struct", "BaseModel", "BaseSettings", "NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum"}
"""Base classes of records: data with names and types, checked by a library."""

Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> Sequence[ast.AST]:
    """All of a file, walked once for all tests."""
    return [*ast.walk(parsed(path))]


def _name(node: ast.expr) -> str:
    """`Struct` of `msgspec.Struct`, `Generic` of `Generic[T]`, `dataclass` of `dataclass(frozen=True)`."""
    if isinstance(node, ast.Subscript | ast.Call):
        return _name(node.value if isinstance(node, ast.Subscript) else node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class Classes:
    """All classes of a folder, by `file:Class`."""

    def __init__(self, folder: Path) -> None:
        self.found: dict[str, ast.ClassDef] = {}
        self._by_name: dict[str, list[ast.ClassDef]] = {}
        for path in sources(folder):
            for node in nodes(path):
                if isinstance(node, ast.ClassDef):
                    self.found[f"{path.relative_to(folder)}:{node.name}"] = node
                    self._by_name.setdefault(node.name, []).append(node)

    def is_record(self, node: ast.ClassDef, *seen: str) -> bool:
        """Whether a class is a struct, dataclass, settings model, enumeration or exception, also by a base class."""
        if "dataclass" in map(_name, node.decorator_list):
            return True
        bases = {_name(base) for base in node.bases} - {node.name, *seen}
        return any(
            base in RECORDS
            or base.endswith(("Error", "Exception"))
            or (base in self._by_name and all(self.is_record(one, node.name, *seen) for one in self._by_name[base]))
            for base in bases
        )

    def methods(self) -> dict[str, int]:
        """Functions in the body of each class that is no record, properties included."""
        return {name: len([*_functions(node)]) for name, node in self.found.items() if not self.is_record(node)}

    def attributes(self) -> dict[str, int]:
        """Attributes of each class that is no record.

        An attribute is a name that a method of the class assigns to `self`, or an annotated field of the class body.
        Inherited attributes count at the base class, unless a method of the class assigns them too.
        """
        return {name: len(_attributes(node)) for name, node in self.found.items() if not self.is_record(node)}

    def arguments(self) -> dict[str, int]:
        """Arguments of each `__init__` without `self`, `*args` and `**kwargs`."""
        return {
            name: len([*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]) - 1
            for name, node in self.found.items()
            for made in _functions(node)
            if made.name == "__init__"
        }


def _functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (made for made in node.body if isinstance(made, Functions))


def _attributes(node: ast.ClassDef) -> set[str]:
    declared = {
        one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return declared | {
        target.attr
        for made in _functions(node)
        for target in ast.walk(made)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def lines(folder: Path) -> dict[str, int]:
    """Lines of each file."""
    return {str(path.relative_to(folder)): len(path.read_text().splitlines()) for path in sources(folder)}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, without the blocks under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _name(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield other
                yield from _running(other)
        else:
            yield child
            yield from _running(child)


def _imports(path: Path, module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules that a file imports, at the top or in a function."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _running(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            whole = ".".join(filter(None, [base, node.module]))
            names = [f"{whole}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else whole for name in names)


def circles(folder: Path) -> list[list[str]]:
    """Groups of files of one package that import each other in a circle (strongly connected components)."""
    modules = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources(folder)
    }
    packages = {name: name.split(".")[1 : 3 if ".features." in name else 2] for name in modules}
    graph = {
        name: {
            other for other in _imports(path, name, modules) if other in modules and packages[other] == packages[name]
        }
        for name, path in modules.items()
    }
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset({name, *(other for other in reached[name] if name in reached[other])}) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    rest = [start]
    while rest:
        new = graph[rest.pop()] - found
        found |= new
        rest += new
    return found
