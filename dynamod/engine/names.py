"""The engines by the names people type, imported only when asked for."""

import difflib
import importlib
import importlib.util
from typing import NamedTuple

from dynamod.message.errors import UserError

from .base import Engine


class Known(NamedTuple):
    """Where an engine's class is, and which extra of this package brings what it imports."""

    target: str
    extra: str = ""
    needs: str = ""


ENGINES: dict[str, Known] = {
    "echo_core": Known("dynamod.engine.echo:EchoCore"),
    "echo_full": Known("dynamod.engine.echo:EchoFull"),
    "mistralrs": Known("dynamod.engine.mistralrs:MistralRs", "mistralrs", "mistralrs"),
}

ALIASES = {"echo": "echo_core", "mistral.rs": "mistralrs"}


def canonical(name: str) -> str:
    """The engine's own name for what was typed. Raises UserError that lists the known ones."""
    name = ALIASES.get(name, name)
    if name not in ENGINES:
        near = difflib.get_close_matches(name, [*ENGINES, *ALIASES], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"unknown engine '{name}'", f"{hint}known engines: {', '.join(sorted(ENGINES))}")
    return name


def engine_class(name: str) -> type[Engine]:
    """The class behind a name. Raises UserError for an unknown name or a missing extra."""
    known = ENGINES[canonical(name)]
    if known.needs and importlib.util.find_spec(known.needs) is None:
        raise UserError(
            f"engine '{name}' needs the package '{known.needs}'", f"install dynamod[{known.extra}]", exit_code=3
        )
    module, _, attribute = known.target.partition(":")
    found: type[Engine] = getattr(importlib.import_module(module), attribute)
    return found
