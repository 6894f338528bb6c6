"""Settings that features add to the sections of a config file."""

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec

from .installed import installed
from .structs import derived

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """Other ways to give a setting, as part of the annotation of its field.

    `metavar`, `help`: of its flag `--NAME METAVAR`. FILE and FOLDER are relative to the folder of the command; BOOL
    makes a pair `--NAME`, `--no-NAME`. N is a number. JSON is an object or a file with one, and only for the processor.
    `variable`: of the environment of a frontend. `group`: the heading of the flag in `--help`; empty: that of the
    section's own flags. `flag`: False where the setting has a variable and no flag.
    """

    metavar: str
    help: str
    variable: str = ""
    group: str = ""
    flag: bool = True


def variable(name: str, metavar: str = "TEXT") -> Option:
    """A setting that is given by a variable of the environment, or in a file, and has no flag."""
    return Option(metavar, "", name, flag=False)


def extended(model: type[T]) -> type[T]:
    """The struct of a section with the fields that features add to it; `model` itself where none does.

    `model.SECTION` names the section. A feature that is off adds its fields, too: a config file stays valid when a
    feature is switched off.
    """
    kind: Any = model
    section = getattr(kind, "SECTION", "") if issubclass(kind, msgspec.Struct) else ""
    structs = _structs(section) if section else ()
    return _merged(kind, structs) if structs else model


@cache
def _merged(model: type[Any], structs: tuple[type[msgspec.Struct], ...]) -> type[Any]:
    default: Any = msgspec.field
    added = [
        (field.name, field.type, default(default=field.default, default_factory=field.default_factory))
        for struct in structs
        for field in msgspec.structs.fields(struct)
    ]
    return derived(model, added)


def options(section: str = "") -> dict[str, Option]:
    """The flags of settings that features add, by the name of the setting. `section`: "" for all sections."""
    fields = (field for struct in _structs(section) for field in msgspec.structs.fields(struct))
    found = ((field.name, note) for field in fields for note in getattr(field.type, "__metadata__", ()))
    return {name: note for name, note in found if isinstance(note, Option)}


def _structs(section: str) -> tuple[type[msgspec.Struct], ...]:
    settings = (one for feature in installed().values() for one in feature.settings.items())
    return tuple(struct for name, struct in settings if section in ("", name))
