"""The engines by the names people type, imported only when asked for."""

import difflib
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple

from dynamod.message.errors import UserError

from .base import Engine


class Known(NamedTuple):
    """Where an engine's class is, and which extra of this package brings what it imports.

    `check`: a function that takes the engine's arguments and `kv_cache_block_size` and raises UserError; it imports
    nothing heavy, so that mistakes are told before anything starts. `file`: the engine is a file of the user's, named
    behind a colon.
    """

    target: str
    extra: str = ""
    needs: str = ""
    check: str = ""
    model: bool = True  # whether it needs one
    file: bool = False


_FILE = "dynamod.engine.python.file:check"

ENGINES: dict[str, Known] = {
    "echo_core": Known("dynamod.engine.echo:EchoCore"),
    "echo_full": Known("dynamod.engine.echo:EchoFull", model=False),
    "llamacpp": Known(
        "dynamod.engine.llamacpp.engine:LlamaCpp",
        "llama_cpp",
        "llama_cpp",
        check="dynamod.engine.llamacpp.arguments:arguments_of",
    ),
    "mistralrs": Known("dynamod.engine.mistralrs:MistralRs", "mistralrs", "mistralrs"),
    "mocker": Known("dynamod.engine.mocker.engine:Mocker", check="dynamod.engine.mocker.arguments:arguments_of"),
    "pystr": Known("dynamod.engine.python.file:PyStr", check=_FILE, model=False, file=True),
    "pytok": Known("dynamod.engine.python.file:PyTok", check=_FILE, file=True),
}

ALIASES = {"echo": "echo_core", "mistral.rs": "mistralrs", "llama_cpp": "llamacpp", "llama.cpp": "llamacpp"}


def canonical(name: str) -> str:
    """The engine's own name for what was typed, without its file. Raises UserError that lists the known ones."""
    name, _, file = name.partition(":")
    name = _own_name(name)
    if ENGINES[name].file and not file:
        raise UserError(f"engine '{name}' needs a file", f"{name}:my_engine.py")
    if file and not ENGINES[name].file:
        raise UserError(f"engine '{name}' takes no file", f"write {name} without a colon")
    return name


def _own_name(name: str) -> str:
    name = ALIASES.get(name, name)
    if name not in ENGINES:
        near = difflib.get_close_matches(name, [*ENGINES, *ALIASES], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"unknown engine '{name}'", f"{hint}known engines: {', '.join(sorted(ENGINES))}")
    return name


def file_of(name: str) -> str:
    """The user's file in what was typed: `my_engine.py` in `pystr:my_engine.py`; empty when there is none."""
    return name.partition(":")[2]


def arguments_with(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own arguments, with its file among them if it has one."""
    return {**arguments, "file": file_of(name)} if file_of(name) else dict(arguments)


def engine_class(name: str) -> type[Engine]:
    """The class behind a name. Raises UserError for an unknown name or a missing extra."""
    known = ENGINES[_own_name(name)]
    if known.needs and importlib.util.find_spec(known.needs) is None:
        raise UserError(
            f"engine '{name}' needs the package '{known.needs}'", f"install dynamod[{known.extra}]", exit_code=3
        )
    found: type[Engine] = _load(known.target)
    return found


def check_arguments(name: str, arguments: Mapping[str, Any], block_size: int | None) -> None:
    """Raise UserError when the engine's own arguments are wrong, as far as that is known without loading it."""
    check = ENGINES[_own_name(name)].check
    if check:
        _load(check)(arguments, block_size)


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
