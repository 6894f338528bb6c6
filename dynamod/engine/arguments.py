"""An engine's own arguments (`--extra-engine-args`, `engine_args` in YAML) as a checked struct."""

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from dynamod.message.errors import UserError
from dynamod.message.hints import names, near

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
            values[name] = value
        own = values.setdefault("block_size", block_size) if block_size is not None else None
        if own != block_size:
            raise self.wrong("block_size", f"{own}, but kv_cache_block_size is {block_size}: give one of them")
        try:
            return msgspec.convert(values, self._kind)
        except msgspec.ValidationError as error:
            raise self._translated(str(error), values) from None

    def wrong(self, key: str, problem: str) -> UserError:
        """The error for a key."""
        return self._error(key, problem, "")

    def _error(self, key: str, problem: str, hint: str) -> UserError:
        known = names(self._kind.__struct_fields__)
        return UserError(f"{self._engine} argument {key}: {problem}", f"{hint}known keys: {known}")

    def _translated(self, problem: str, values: Mapping[str, Any]) -> UserError:
        """The error for a sentence of msgspec."""
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem)
        if unknown is not None:
            known = [*self._kind.__struct_fields__, *self._aliases]
            return self._error(unknown[1], "unknown key", near(unknown[1], known))
        what, _, path = problem.partition(" - at `$.")
        name = path.rstrip("`")
        value = values.get(name)
        got = f", got {value!r}" if not isinstance(value, dict | list) and "got" not in what else ""
        return self.wrong(
            name, what.replace("Expected", "expected").replace("Invalid", "invalid").replace("`", "") + got
        )
