"""A YAML file as data that still knows the line of every value, with `${ENV}` filled in.

Differences from plain `yaml.safe_load`: a key written twice is an error; dates stay strings and `1e-3` is a number
(a config travels to a child as JSON); `${NAME}` and `${NAME:-default}` in strings are replaced, `$${`
writes a literal `${`. An unquoted scalar is typed after replacement, so `port: ${PORT:-8000}` is an integer.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from dynamod.message.errors import UserError
from dynamod.message.hints import kind, known_hint

Path = tuple[str, ...]
_VARIABLE = re.compile(r"\$?\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\})?")


@dataclass(frozen=True)
class Document:
    """`data`: the merged configuration. `origins`: for each YAML path, where it was written, for messages."""

    data: dict[str, Any] = field(default_factory=dict[str, Any])
    origins: dict[Path, str] = field(default_factory=dict[Path, str])
    source: str = ""

    def error(self, path: Path, problem: str, hint: str = "") -> UserError:
        """The one error of a wrong config: file and line of the nearest thing that is known, YAML path, problem."""
        around = (self.origins.get(path[:length]) for length in range(len(path), -1, -1))
        where = next(filter(None, around), self.source or "config")
        return UserError(": ".join(filter(None, [where, ".".join(path), problem])), hint)

    def only(self, path: Path, keys: Iterable[str], known: Collection[str]) -> None:
        """Raise UserError for the first of the `keys` at `path` that is not known."""
        for key in keys:
            if key not in known:
                raise self.error((*path, key), "unknown key", known_hint(key, known))


def read_document(text: str, source: str, environ: Mapping[str, str]) -> Document:
    """Parse `text`, named `source` in messages. Raises UserError with file and line."""
    import yaml

    loader, origins = _loader_class()(text), dict[Path, str]()
    try:
        root = loader.get_single_node()
        if root is not None:
            _walk(loader, root, (), Document({}, origins, source), environ, set())
        data: object = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        written = text.splitlines()[mark.line : mark.line + 1] if mark else []
        form = "JSON or YAML" if text.lstrip().startswith("{") else "YAML"
        raise UserError(f"{source}{line}: not valid {form}: {problem}", _unquoted("".join(written))) from None
    finally:
        loader.dispose()
    if data is not None and not isinstance(data, dict):
        raise UserError(f"{source}: expected a mapping of services, got {kind(data)}")
    return Document(cast("dict[str, Any]", data or {}), {**origins, (): source}, source)


def _unquoted(line: str) -> str:
    """What to do about a line with a variable that YAML cannot read: `{` begins a mapping inside `{}` and `[]`."""
    found = re.search(r"\$\{[^}\"']*\}", line)
    return f'write "{found[0]}" in quotes: inside {{ }} and [ ] YAML takes its braces for a mapping' if found else ""


def _walk(loader: Any, node: Any, path: Path, document: Document, environ: Mapping[str, str], inside: set[int]) -> None:
    """Note lines, refuse doubled keys, fill in variables; an alias is visited once per use."""
    import yaml

    def line(of: Any) -> str:
        return f"{document.source}:{of.start_mark.line + 1}"

    origins, children = document.origins, list[tuple[str, Any]]()
    origins.setdefault(path, line(node))
    if id(node) in inside:
        raise document.error(path, "an alias contains itself")
    first_visit = not getattr(node, "visited", False)  # an aliased node is one object with several parents
    node.visited = True
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key in (key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"):
            name = str(key.value)
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{line(key)}: {'.'.join(path)}: a key must be text")
            if name in seen and first_visit:
                raise UserError(f"{line(key)}: {'.'.join((*path, name))}: written twice")
            seen.add(name)
            key.tag = "tag:yaml.org,2002:str"  # JSON has only text keys, so `8000:` is "8000"
            origins[(*path, name)] = line(key)
        loader.flatten_mapping(node)  # `<<: *base`, as the loader itself would do later
        children = [(str(key.value), value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(index), value) for index, value in enumerate(node.value)]
    elif node.tag == "tag:yaml.org,2002:str" and "${" in node.value and first_visit:
        node.value = _fill(node.value, environ, functools.partial(document.error, path))
        if node.style is None:
            node.tag = loader.resolve(yaml.ScalarNode, node.value, (True, False))
    for name, child in children:
        _walk(loader, child, (*path, name), document, environ, inside | {id(node)})


def _fill(text: str, environ: Mapping[str, str], wrong: Callable[[str, str], UserError]) -> str:
    def one(match: re.Match[str]) -> str:
        name, has_default, default = match.groups()
        if match[0].startswith("$$"):
            return match[0][1:]
        if name is None:
            raise wrong(f"bad variable in '{text}'", "write ${NAME} or ${NAME:-default}")
        if has_default:
            return environ.get(name) or str(default)  # also for an empty variable, as in a shell
        if name not in environ:
            raise wrong(f"environment variable {name} is not set", f"set it or write ${{{name}:-default}}")
        return environ[name]

    return _VARIABLE.sub(one, text)


@functools.cache
def _loader_class() -> Any:
    """The safe loader with our scalar types, built on first use because importing yaml takes a while."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag != "tag:yaml.org,2002:timestamp"]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))
    return Loader
