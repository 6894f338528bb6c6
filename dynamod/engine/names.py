"""The registry of engines: a line each, by the names people type, imported only when asked for."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dynamod.message.discovery import Adapter, DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.message.hints import names, near
from dynamod.preprocess.gguf_file import is_gguf
from dynamod.preprocess.packaged import PACKAGED
from dynamod.preprocess.reference import reference

from .entry import EngineEntry, HandoffEntry, VectorsEntry
from .interpreter import FLAG, missing

if TYPE_CHECKING:
    from .base import Engine

DEFAULT = "mistralrs"
"""The engine where no engine is named, except for GGUF files."""


_FILE = "dynamod.engine.python.engine:check"

ENGINES: dict[str, EngineEntry] = {
    "echo_core": EngineEntry("dynamod.engine.echo:EchoCore", weights=False),
    "echo_full": EngineEntry("dynamod.engine.echo:EchoFull", model=False),
    "llamacpp": EngineEntry(
        "dynamod.engine.llamacpp.engine:LlamaCpp",
        "llama_cpp",
        "llama_cpp",
        check="dynamod.engine.llamacpp.arguments:arguments_of",
        flags="dynamod.engine.llamacpp.arguments:flags",
        handoff=HandoffEntry(),
        vectors=VectorsEntry("embeddings", True, "dynamod.engine.llamacpp.embedding:LlamaCppEmbeddings"),
        lora="dynamod.engine.llamacpp.lora:check",
        file_of="dynamod.engine.llamacpp.files:gguf_file",
    ),
    "mistralrs": EngineEntry(
        "dynamod.engine.mistralrs:MistralRs",
        "mistralrs",
        "mistralrs",
        flags="dynamod.engine.mistralrs.loading:flags",
        vectors=VectorsEntry("embeddings", True, "dynamod.engine.mistralrs.embedding:MistralRsEmbeddings"),
    ),
    "mocker": EngineEntry(
        "dynamod.engine.mocker.engine:Mocker",
        check="dynamod.engine.mocker.arguments:arguments_of",
        flags="dynamod.engine.mocker.arguments:flags",
        types=("chat", "completions", "embeddings", "score"),
        weights=False,
        handoff=HandoffEntry(),
    ),
    "openai": EngineEntry(
        "dynamod.engine.openai.engine:OpenAI",
        check="dynamod.engine.openai.arguments:arguments_of",
        flags="dynamod.engine.openai.arguments:flags",
        model=False,
        behind="url",
        vectors=VectorsEntry("embeddings", True),
    ),
    "pystr": EngineEntry("dynamod.engine.python.engine:PyStr", check=_FILE, model=False, behind="file"),
    "pytok": EngineEntry("dynamod.engine.python.engine:PyTok", check=_FILE, behind="file"),
    "sglang": EngineEntry(
        "dynamod.engine.sglang.engine:SgLang",
        "sglang",
        "sglang",
        words=True,
        check="dynamod.engine.sglang.arguments:check",
        flags="dynamod.engine.sglang.arguments:flags",
        devices=True,
        apart=True,
        nodes=True,
        handoff=HandoffEntry("nixl", "disaggregation_transfer_backend", only_decode=True),
        vectors=VectorsEntry("is_embedding", True),
    ),
    "trtllm": EngineEntry(
        "dynamod.engine.trtllm.engine:TrtLlm",
        "trtllm",
        "tensorrt_llm",
        check="dynamod.engine.trtllm.arguments:check",
        flags="dynamod.engine.trtllm.arguments:flags",
        gguf=False,
        devices=True,
        apart=True,
        handoff=HandoffEntry(only_decode=True),
    ),
    "vllm": EngineEntry(
        "dynamod.engine.vllm.engine:Vllm",
        "vllm",
        "vllm",
        words=True,
        check="dynamod.engine.vllm.arguments:check",
        flags="dynamod.engine.vllm.arguments:flags",
        gguf=False,
        devices=True,
        nodes=True,
        apart=True,
        handoff=HandoffEntry("nixl", "kv_transfer_config", only_decode=True),
        vectors=VectorsEntry("runner", "pooling"),
        lora="dynamod.engine.lora:check_folder",
    ),
}

ALIASES = {
    "echo": "echo_core",
    "mistral.rs": "mistralrs",
    **dict.fromkeys(("llama_cpp", "llama.cpp"), "llamacpp"),
    **dict.fromkeys(("tensorrtllm", "tensorrt_llm", "tensorrt-llm"), "trtllm"),
}


def default(model: str) -> str:
    """The engine where no engine is named: llama.cpp for GGUF files, if it is installed, else mistral.rs."""
    found = reference(model)
    gguf = "gguf" in model.lower() or model in PACKAGED or (found is not None and found.quantization)
    return "llamacpp" if gguf and importlib.util.find_spec(ENGINES["llamacpp"].needs) is not None else DEFAULT


def canonical(name: str) -> str:
    """The engine's own name for what was typed, without what comes after a colon. Raises UserError."""
    name, _, file = name.partition(":")
    name = _own_name(name)
    if ENGINES[name].file and not file:
        raise UserError(f"engine '{name}' needs a file", f"{name}:my_engine.py")
    if file and not ENGINES[name].behind:
        raise UserError(f"engine '{name}' takes no file", f"write {name} without a colon")
    return name


def _own_name(name: str) -> str:
    name = ALIASES.get(name, name)
    if name not in ENGINES:
        hint = f"{near(name, [*ENGINES, *ALIASES])}known engines: {names(ENGINES)}"
        raise UserError(f"unknown engine '{name}'", hint)
    return name


def behind(name: str) -> str:
    """What follows the colon: `my_engine.py` in `pystr:my_engine.py`; empty without one."""
    return name.partition(":")[2]


def arguments_with(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own arguments, with what follows the colon among them."""
    return {**arguments, ENGINES[canonical(name)].behind: behind(name)} if behind(name) else dict(arguments)


def require_installed(name: str, python: str = "", environ: Mapping[str, str] = os.environ) -> None:
    """Raise UserError for an unknown name or what is not installed, without importing the engine.

    `python`: the interpreter that is asked, with the environment of the engine's process; empty: this one.
    """
    entry = ENGINES[_own_name(name)]
    if _lacks(entry.needs, python, environ):
        problem = f"engine '{name}' needs the package '{entry.needs}'"
        if python:
            problem += f", which {python} ({FLAG}) lacks"
        raise UserError(problem, entry.hint(python), exit_code=3)


def require_format(name: str, model: Path | None) -> None:
    """Raise UserError for a model in a format that the engine does not read. `model`: its path, None: not known."""
    if model is not None and not ENGINES[_own_name(name)].gguf and is_gguf(model):
        hint = "take out=llamacpp for it, or a folder with safetensors"
        raise UserError(f"engine '{name}' reads no GGUF files, and {model} is one", hint)


def require_file(name: str, model: Path | None) -> None:
    """Raise UserError for a model without a file that the engine loads. `model`: its path, None: not known."""
    entry = ENGINES[_own_name(name)]
    if model is not None and entry.file_of:
        _load(entry.file_of)(model)


def require_handoff(
    name: str,
    mode: DisaggregationMode,
    arguments: Mapping[str, Any],
    python: str = "",
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Raise UserError for an engine that cannot be a worker of this mode, or lacks what moves its KV blocks.

    `arguments`: the engine's own. The others are those of `require_installed`.
    """
    entry = ENGINES[_own_name(name)]
    if mode == "aggregated":
        return
    if entry.handoff is None:
        able = [other for other, one in ENGINES.items() if one.handoff is not None]
        raise UserError(f"engine '{name}' cannot be a {mode} worker", f"engines that can: {names(able)}")
    module, other, _ = entry.handoff
    words = [word.partition("=")[0].lstrip("-") for word in (*arguments, *(arguments.get("argv") or ()))]
    if module and other not in [word.replace("-", "_") for word in words] and _lacks(module, python, environ):
        install = (
            f"{python or 'python'} -m pip install --no-deps nixl nixl-cu12, or the extra 'nixl', which needs torch"
        )
        raise UserError(f"engine '{name}' needs the package '{module}' as a {mode} worker", install, exit_code=3)


def _lacks(module: str, python: str, environ: Mapping[str, str]) -> bool:
    if python:  # also when nothing is needed: it must have dynamod
        return bool(missing(python, [module] if module else [], environ))
    return bool(module) and importlib.util.find_spec(module) is None


def engine_class(name: str, arguments: Mapping[str, Any] = MappingProxyType({})) -> "type[Engine[Any]]":
    """The class for a name. `arguments`: the engine's own. Raises UserError, also for a missing extra."""
    require_installed(name)
    entry = ENGINES[_own_name(name)]
    vectors = entry.vectors.target if entry.vectors is not None else ""
    found: type[Engine[Any]] = _load(vectors if vectors and _embeds(name, arguments) else entry.target)
    return found


def served_types(name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What clients may ask of an engine that is started with these arguments of its own, as far as they tell."""
    entry = ENGINES[_own_name(name)]
    if not _embeds(name, arguments):
        return entry.types
    return ("embeddings", "score") if entry.model else ("embeddings",)


def _embeds(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether it is started to make vectors and no answers. Raises UserError for arguments that are wrong."""
    entry = ENGINES[_own_name(name)]
    if entry.vectors is None:
        return False
    argument, value, _ = entry.vectors
    if entry.check and not entry.words:
        return bool(getattr(check_arguments(name, arguments, None), argument) == value)
    given = {key.replace("-", "_"): one for key, one in arguments.items()}
    words = " ".join(map(str, given.get("argv") or ())).replace("=", " ").split()
    flag = f"--{argument.replace('_', '-')}"
    said = flag in words and (value is True or words[words.index(flag) + 1 :][:1] == [value])
    return said or given.get(argument) == value


def check_arguments(name: str, arguments: Mapping[str, Any], block_size: int | None) -> Any:
    """The engine's own arguments as it reads them, None when that is not known without loading it. Raises UserError."""
    check = ENGINES[_own_name(name)].check
    return _load(check)(arguments, block_size) if check else None


def check_lora(name: str, adapters: Sequence[Adapter], arguments: Mapping[str, Any], model: Path | None) -> None:
    """Raise UserError for adapters that the engine cannot load, as far as that is known. `model`: its path."""
    if not adapters:
        return
    if not (check := ENGINES[_own_name(name)].lora):
        able = [other for other, one in ENGINES.items() if one.lora]
        raise UserError(f"engine '{name}' loads no LoRA adapters", f"engines that do: {names(able)}")
    if _embeds(name, arguments):
        raise UserError(f"engine '{name}' loads no LoRA adapters where it makes vectors", "leave out lora")
    _load(check)(adapters, model)


def add_flags(name: str, add: Callable[..., object]) -> None:
    """Call `add`, as `ArgumentParser.add_argument` is called, for each of the engine's own arguments.

    Raises UserError when the package that knows them is not installed.
    """
    if flags := ENGINES[_own_name(name)].flags:
        try:
            _load(flags)(add)
        except ModuleNotFoundError:
            require_installed(name)
            raise


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
