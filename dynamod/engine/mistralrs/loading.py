"""From engine options to a loaded `mistralrs.Runner`; what a user can mend comes back as UserError."""

import importlib.metadata
import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint, names
from dynamod.preprocess.gguf_file import read_metadata, shards

from ..arguments import add_flag
from ..base import EngineOptions
from ..threads import RAYON, set_rayon_threads

log = logging.getLogger("dynamod.engine")

MAX_SEQS = 32

_FLOATS = (0, 1, 32)
"""general.file_type of GGUF files that are not quantised: F32, F16, BF16."""

VERBATIM = Path(__file__).with_name("verbatim.jinja")
"""mistralrs puts every prompt through a chat template, also one that is a string. This one changes nothing."""

# Set by us, or no value that a file or command line can hold.
_HIDDEN = {"which", "model_id", "quantized_model_id", "quantized_filename", "chat_template", "jinja_explicit"} | {
    *("anymoe_config", "search_callback", "tool_callbacks", "mcp_client_config", "code_execution_config"),
    *("shell_config", "adapters", "mmproj_filename"),
}
EMBEDDINGS = "embeddings"
"""Our argument: the model makes vectors, and no answers."""
_ENUMS = {
    "dtype": "ModelDType",
    "organization": "IsqOrganization",
    "pa_cache_type": "PagedCacheType",
}

_HINTS = (
    ("missing field `rope_theta`", "write rope_theta at the top level of config.json"),
    (
        "Unsupported Hugging Face",
        "mistralrs does not know this architecture; the engine's argument arch names one it should take",
    ),
    ("Unknown normal-model GGUF architecture", "mistralrs does not know this architecture; take out=llamacpp"),
    ("Expected file with extension", "the folder has no weights; download them"),
    ("invalid GGUF magic", "this is no GGUF file; download it again"),
    ("was not found in local model directory", "give the folder of the original model with --model-config"),
)


def flags(add: Callable[..., object]) -> None:
    """Call `add`, as `ArgumentParser.add_argument` is called, for each argument that mistralrs takes from us."""
    import mistralrs

    add_flag(add, [EMBEDDINGS], bool, False)
    for kind in (mistralrs.Runner, mistralrs.Which.Plain, mistralrs.Which.GGUF):
        for name, parameter in inspect.signature(kind).parameters.items():
            if name not in _HIDDEN:
                add_flag(add, [name], default=parameter.default)


def max_seqs(arguments: Mapping[str, Any]) -> int:
    """How many requests the engine works on at once. Raises UserError."""
    value = arguments.get("max_seqs", arguments.get("max-seqs", MAX_SEQS))
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"mistralrs: max_seqs={value!r} is not possible", "give a number from 1 upwards")
    return value


def load(options: EngineOptions) -> Any:
    """Load the model. Blocks for as long as that takes. Raises UserError."""
    # Rust reads RUST_LOG once, at import: its own notes have the whole chat template.
    os.environ.setdefault("RUST_LOG", "warn")
    if _on_cpu():
        log.info("mistralrs computes with %d threads (%s)", set_rayon_threads(), RAYON)
    import mistralrs

    path = options.path
    assert path is not None
    gguf = path.suffix.lower() == ".gguf"
    arguments = dict(options.arguments)
    embeds = bool(arguments.pop(EMBEDDINGS, False))
    if embeds and gguf:
        hint = "take out=llamacpp, or a folder with EmbeddingGemma or Qwen3-Embedding"
        raise UserError(f"mistralrs makes no vectors with GGUF files, and {path} is one", hint)
    kinds = mistralrs.Which
    which: Any = kinds.Embedding if embeds else kinds.GGUF if gguf else kinds.Plain
    for_runner, for_which = split(arguments, mistralrs.Runner, which)
    arch = "EmbeddingArchitecture" if embeds else "Architecture"
    log.info("mistralrs loads %s", path)
    began = time.monotonic()
    try:
        given = {**_files(path, options.config_path), **_values(mistralrs, for_which, arch=arch)}
        runner = mistralrs.Runner(
            which=which(**given),
            jinja_explicit=str(VERBATIM),
            **{**_defaults(), **_values(mistralrs, for_runner)},
        )
    except (KeyboardInterrupt, SystemExit, UserError):
        raise
    except (TypeError, OverflowError) as error:
        raise UserError(f"mistralrs: {error}", "correct the engine's arguments") from None
    except BaseException as error:  # ValueError for everything it expects; a panic is a BaseException
        raise _explained(path, error) from None
    log.info("mistralrs has loaded %s in %.1f s", path, time.monotonic() - began)
    return runner


def _defaults() -> dict[str, Any]:
    # on a CPU a hit of a long prefix together with short prompts panics ("shape mismatch") and ends all streams
    return {"max_seqs": MAX_SEQS, **({"prefix_cache_n": 0} if _on_cpu() else {})}


def one_prompt_at_a_time(options: EngineOptions) -> bool:
    """Whether two prompts must not be computed together: with quantised weights on a CPU all of them fail ("input
    tensor is not contiguous").
    """
    path = options.path
    assert path is not None
    if not _on_cpu():
        return False
    in_situ = any(key.replace("-", "_") == "in_situ_quant" and value for key, value in options.arguments.items())
    quantised = path.suffix.lower() == ".gguf" and read_metadata(path).get("general.file_type") not in _FLOATS
    return quantised or in_situ


def _on_cpu() -> bool:
    """Whether it is the build for CPUs: those for accelerators are distributions of their own."""
    return not any(_installed(f"mistralrs-{kind}") for kind in ("cuda", "metal"))


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def split(arguments: Mapping[str, Any], runner: Any, which: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments for `Runner` and for `Which`, keys as Python writes them. Raises UserError for an unknown one."""
    known_runner, known_which = (inspect.signature(one).parameters.keys() - _HIDDEN for one in (runner, which))
    known, values = known_runner | known_which, {key.replace("-", "_"): value for key, value in arguments.items()}
    for key in arguments:
        if key.replace("-", "_") not in known:
            raise UserError(f"mistralrs takes no argument '{key}'", known_hint(key, known, "known"))
    for_runner = {name: value for name, value in values.items() if name in known_runner}
    return for_runner, {name: value for name, value in values.items() if name not in known_runner}


def _files(path: Path, config: Path | None) -> dict[str, Any]:
    """Where weights and tokenizer are. A folder as `config` lends its tokenizer; all shards of a GGUF are named."""
    folder = config.parent if config is not None and config.is_file() else config
    tokenizer = folder / "tokenizer.json" if folder is not None else None
    lent = tokenizer is not None and tokenizer.is_file()
    if path.suffix.lower() != ".gguf":
        return {"model_id": str(path), **({"tokenizer_json": str(tokenizer)} if lent else {})}
    parts = [file.name for file in shards(path)]
    found = {
        "quantized_model_id": str(path.absolute().parent),
        "quantized_filename": parts if len(parts) > 1 else path.name,
    }
    return {**found, **({"tok_model_id": str(folder)} if lent else {})}


def _values(module: Any, arguments: Mapping[str, Any], arch: str = "Architecture") -> dict[str, Any]:
    """Names of enum members become the members. `arch`: the enum of that argument. Raises UserError."""
    values, enums = dict(arguments), {**_ENUMS, "arch": arch}
    for name in values.keys() & enums.keys():
        kind, value = getattr(module, enums[name]), values[name]
        members = {member.lower(): member for member in dir(kind) if not member.startswith("_")}
        if value is not None and str(value).lower() not in members:
            raise UserError(f"mistralrs knows no {name} '{value}'", f"known: {names(members.values())}")
        values[name] = None if value is None else getattr(kind, members[str(value).lower()])
    return values


def _is_whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says: a length, JSON, and the tensors it describes."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, file.stat().st_size)))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return file.stat().st_size == 8 + length + max(ends, default=0)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return False


def _explained(path: Path, error: BaseException) -> UserError:
    """One line without Rust's back trace, and what to do where that is known."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    hint = next((hint for sign, hint in _HINTS if sign in reason), "")
    if damaged := [file.name for file in sorted(path.glob("*.safetensors")) if not _is_whole(file)]:
        hint = f"{', '.join(damaged)} is damaged or cut off; download it again"
    return UserError(f"mistralrs cannot load {path}: {reason}", hint)
