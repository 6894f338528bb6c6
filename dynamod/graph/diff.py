"""What changed between two graphs; the daemon's reload decides from it whom to stop, start or restart."""

from dataclasses import dataclass, fields

from dynamod.graph.graph import Graph, ServiceSpec

_CODE = ("path", "file", "sys_path", "code")  # four views of one thing: other code runs


@dataclass(frozen=True)
class Changes:
    """Service names. `changed` says which fields of the spec differ, `code` standing for its source."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] | None = None
    unchanged: tuple[str, ...] = ()

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
        unchanged=tuple(name for name in both if name not in changed),
    )


def _differing(old: ServiceSpec, new: ServiceSpec) -> tuple[str, ...]:
    names = [field.name for field in fields(ServiceSpec) if getattr(old, field.name) != getattr(new, field.name)]
    # service_args is the raw form of what the other fields already say
    names = ["code" if name in _CODE else name for name in names if name != "service_args"]
    return tuple(dict.fromkeys(names))
