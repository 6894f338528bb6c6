"""What changed between two graphs; the daemon's reload decides from it which components to stop, start or restart."""

from dataclasses import dataclass, fields
from typing import Any

from dynamod.graph.graph import Graph, ServiceSpec

_CODE = ("path", "file", "sys_path", "code")  # four views of one thing: other code runs


@dataclass(frozen=True)
class Changes:
    """Service names. `changed`: the fields of the spec that differ, `code` standing for its source."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] | None = None

    @property
    def nothing(self) -> bool:
        """The two graphs run the same."""
        return not (self.added or self.removed or self.changed)


def diff(old: Graph, new: Graph) -> Changes:
    """Compare by service name; a renamed service is one removed and one added."""
    both = [name for name in new.services if name in old.services]
    changed = {name: what for name in both if (what := _differing(old.services[name], new.services[name]))}
    return Changes(
        added=tuple(name for name in new.services if name not in old.services),
        removed=tuple(name for name in old.services if name not in new.services),
        changed=changed,
    )


def lines(old: Graph, new: Graph) -> list[str]:
    """The changes for people: `Worker.config.engine: echo_core -> mocker`. Secrets are not shown."""
    changes = diff(old, new)
    found = [f"- {name}" for name in changes.removed] + [f"+ {name}" for name in changes.added]
    for name, what in (changes.changed or {}).items():
        pair = old.services[name], new.services[name]
        for field in what:
            values = [getattr(spec, field) for spec in pair]
            found += [f"{name}: its code"] if field == "code" else _values(f"{name}.{field}", *values)
    return found


_SECRET = ("key", "keys", "token", "password", "secret")


def is_secret(name: str) -> bool:
    """Whether the name of a setting, or of an environment variable, says that its value is a secret."""
    name = name.replace("-", "_").lower()
    return name.endswith(_SECRET) or "api_key" in name


def _values(path: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new}, key=str)
        return [line for key in keys for line in _values(f"{path}.{key}", old.get(key), new.get(key))]
    if old == new:
        return []
    if is_secret(path.rpartition(".")[2]) or "api_key" in path:
        return [f"{path}: another value"]
    before, after = ("unset" if value is None else value for value in (old, new))
    return [f"{path}: {before} -> {after}"]


def _differing(old: ServiceSpec, new: ServiceSpec) -> tuple[str, ...]:
    names = [field.name for field in fields(ServiceSpec) if getattr(old, field.name) != getattr(new, field.name)]
    return tuple(dict.fromkeys("code" if name in _CODE else name for name in names))
