"""An engine's own arguments (`--extra-engine-args`, `engine_args` in YAML) as a checked struct, and as flags."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, get_args

import msgspec

from dynamod.message.errors import UserError
from dynamod.message.hints import in_words, names, near, refusal

Struct = TypeVar("Struct", bound=msgspec.Struct)


class Arguments(Generic[Struct]):
    """Reads arguments of `engine` into `kind`, whose first field of note is `block_size`. `aliases`: other names."""

    def __init__(self, engine: str, kind: type[Struct], aliases: Mapping[str, str] | None = None) -> None:
        self._engine, self._kind, self._aliases = engine, kind, dict(aliases or {})

    def read(self, given: Mapping[str, Any], block_size: int | None) -> Struct:
        """Keys may be spelled with `-`. `block_size`: `kv_cache_block_size`, where a user has set that.

        Raises UserError that names the key and the known ones.
        """
        values: dict[str, Any] = {}
        for key, value in given.items():
            name = key.replace("-", "_")
            name = self._aliases.get(name, name)
            if name in values:
                raise self.wrong(key, f"given twice, once as {name}" if key != name else "given twice")
            if name not in self._kind.__struct_fields__:
                raise self.wrong(key, "unknown key", near(key, [*self._kind.__struct_fields__, *self._aliases]))
            values[name] = value
        own = values.setdefault("block_size", block_size) if block_size is not None else None
        if own != block_size:
            raise self.wrong("block_size", f"{own}, but kv_cache_block_size is {block_size}: give one of them")
        try:
            return msgspec.convert(values, self._kind)
        except msgspec.ValidationError as error:
            name, sentence, _ = refusal(error)
            raise self.wrong(name, in_words(sentence, values.get(name))) from None

    def flags(self, add: Callable[..., object]) -> None:
        """Call `add`, as `ArgumentParser.add_argument` is called, for each argument."""
        for field in msgspec.structs.fields(self._kind):
            names = [field.name, *[other for other, name in self._aliases.items() if name == field.name]]
            add_flag(add, names, field.type, field.default)

    def wrong(self, key: str, problem: str, hint: str = "") -> UserError:
        """The error for a key; `hint` stands before the known ones."""
        known = names(self._kind.__struct_fields__)
        return UserError(f"{self._engine} argument {key}: {problem}", f"{hint}known keys: {known}")


def add_flag(add: Callable[..., object], names: Iterable[str], kind: Any = None, default: Any = None) -> None:
    """A flag for an argument, called as the first of `names`; values are JSON, or else text."""
    first, *others = names
    options = [f"--{name.replace('_', '-')}" for name in (first, *others)]
    shown = f"default {json.dumps(default)}" if isinstance(default, str | int | float) else ""
    if kind is bool:
        add(*options, dest=first, action=argparse.BooleanOptionalAction, help=shown)
        return
    take = str if kind is str else _value
    add(*options, dest=first, type=take, metavar=_metavar(kind), help=shown)


def _metavar(kind: Any) -> str:
    words = ["true", "false"] if bool in get_args(kind) else []
    words += [value for one in (kind, *get_args(kind)) for value in get_args(one) if isinstance(value, str)]
    return "|".join(words) or "VALUE"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
