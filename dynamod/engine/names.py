"""The registry of engines: a line each, by the names people type, imported only when asked for."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dynamod.message.errors import UserError
from dynamod.message.hints import extra_hint, names, near
from dynamod.preprocess.reference import reference

if TYPE_CHECKING:
    from .base import Engine

DEFAULT = "mistralrs"
"""The engine of who names none, but for GGUF files."""


class EngineEntry(NamedTuple):
    """Where an engine's class is, and which extra of this package brings what it imports.

    `extra`: of pyproject.toml; `needs`: the module it brings. `check`: a function that takes the engine's arguments and
    `kv_cache_block_size` and raises UserError; it imports nothing heavy, so that mistakes are reported before anything
    starts. `model`: it needs one, and `weights`: not only its tokenizer. `file`: the engine is a file of the user's,
    named behind a colon.
    """

    target: str
    extra: str = ""
    needs: str = ""
    check: str = ""
    model: bool = True
    weights: bool = True
    file: bool = False


_FILE = "dynamod.engine.python.engine:check"

ENGINES: dict[str, EngineEntry] = {
    "echo_core": EngineEntry("dynamod.engine.echo:EchoCore", weights=False),
    "echo_full": EngineEntry("dynamod.engine.echo:EchoFull", model=False),
    "llamacpp": EngineEntry(
        "dynamod.engine.llamacpp.engine:LlamaCpp",
        "llama_cpp",
        "llama_cpp",
        check="dynamod.engine.llamacpp.arguments:arguments_of",
    ),
    "mistralrs": EngineEntry("dynamod.engine.mistralrs:MistralRs", "mistralrs", "mistralrs"),
    "mocker": EngineEntry(
        "dynamod.engine.mocker.engine:Mocker", check="dynamod.engine.mocker.arguments:arguments_of", weights=False
    ),
    "pystr": EngineEntry("dynamod.engine.python.engine:PyStr", check=_FILE, model=False, file=True),
    "pytok": EngineEntry("dynamod.engine.python.engine:PyTok", check=_FILE, file=True),
}

TO_COME = ("vllm", "sglang", "trtllm")
"""Engines of the original that have no code here."""

ALIASES = {"echo": "echo_core", "mistral.rs": "mistralrs", "llama_cpp": "llamacpp", "llama.cpp": "llamacpp"}


def default(model: str) -> str:
    """The engine of who names none: llama.cpp for GGUF files, where it is installed, else mistral.rs."""
    found = reference(model)
    gguf = "gguf" in model.lower() or (found is not None and found.quantization)
    return "llamacpp" if gguf and importlib.util.find_spec(ENGINES["llamacpp"].needs) is not None else DEFAULT


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
    if name in TO_COME:
        raise UserError(f"engine '{name}' is not in dynamod yet", f"engines: {names(ENGINES)}")
    if name not in ENGINES:
        hint = f"{near(name, [*ENGINES, *ALIASES])}known engines: {names(ENGINES)}"
        raise UserError(f"unknown engine '{name}'", hint)
    return name


def file_of(name: str) -> str:
    """The user's file in what was typed: `my_engine.py` in `pystr:my_engine.py`; empty when there is none."""
    return name.partition(":")[2]


def arguments_with(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own arguments, with its file among them if it has one."""
    return {**arguments, "file": file_of(name)} if file_of(name) else dict(arguments)


def require_installed(name: str) -> None:
    """Raise UserError for an unknown name or a missing extra, without importing the engine."""
    entry = ENGINES[_own_name(name)]
    if entry.needs and importlib.util.find_spec(entry.needs) is None:
        problem = f"engine '{name}' needs the package '{entry.needs}'"
        raise UserError(problem, extra_hint(entry.extra), exit_code=3)


def engine_class(name: str) -> "type[Engine[Any]]":
    """The class behind a name. Raises UserError for an unknown name or a missing extra."""
    require_installed(name)
    found: type[Engine[Any]] = _load(ENGINES[_own_name(name)].target)
    return found


def check_arguments(name: str, arguments: Mapping[str, Any], block_size: int | None) -> Any:
    """The engine's own arguments as it reads them, None when that is not known without loading it. Raises UserError."""
    check = ENGINES[_own_name(name)].check
    return _load(check)(arguments, block_size) if check else None


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
