"""From the name a user types to a path on this machine, and to the name the model is served under."""

import importlib
import re
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError
from dynamod.message.hints import closest

_SHIPPED = ("sample", "sample.gguf")
_PREFIX = "hf://"
_REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_CACHED = re.compile(r"models--(.+?)--(.+)")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_NEVER = ("*.h5", "*.msgpack", "*.onnx", "*.tflite", "*.mlmodel", "original/*", "onnx/*", "flax_model*", "tf_model*")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def locate(name: str, *, download: bool = True) -> Path:
    """Return the folder or GGUF file that `name` means.

    In order: `sample` and `sample.gguf` (shipped with dynamod), a path on this machine, `org/name` on Hugging Face
    (with or without `hf://`; `org/name/file.gguf` for one file of a repository). `download=False` only looks into the
    local cache. Raises UserError with one line that says what to do.
    """
    if name in _SHIPPED:
        shipped: Path = importlib.import_module("dynamod.sample").path(name)
        return shipped
    if not name.startswith(_PREFIX):
        path = Path(name).expanduser()
        if name and path.exists():
            return path
    if not may_be_repository(name):
        raise UserError(f"model {name!r} is neither a path on this machine nor org/name on Hugging Face", _hint(name))
    return _fetch(*_split(name), download=download)


def may_be_repository(name: str) -> bool:
    """Whether a name that is no path here may name a repository on Hugging Face, or a file of one."""
    repository, file = _split(name)
    looks_local = name.startswith((".", "/", "~")) or (name.endswith(".gguf") and not file)
    return not looks_local and _REPOSITORY.fullmatch(repository) is not None


def model_name(name: str, path: Path) -> str:
    """The name to serve a model under, when the user gave none.

    `org/name` of Hugging Face stays as given (also when `path` lies in its cache); a folder is its last component; a
    GGUF file its name without `.gguf` and without the number of a shard.
    """
    if name in _SHIPPED:
        return "sample"
    local = not name.startswith(_PREFIX) and Path(name).expanduser().exists()
    repository, file = _split(name)
    if not local and not file and _REPOSITORY.fullmatch(repository):
        return repository
    path = Path(path).expanduser().absolute()
    if path.suffix.lower() == ".gguf":
        return _SHARD.sub("", path.stem)
    cached = _CACHED.fullmatch(path.parent.parent.name) if path.parent.name == "snapshots" else None
    return f"{cached[1]}/{cached[2]}" if cached else path.name


def _split(name: str) -> tuple[str, str]:
    """`org/name/file`, perhaps behind hf://, as (org/name, file); the file may be empty."""
    organisation, repository, file = [*name.removeprefix(_PREFIX).split("/", 2), "", ""][:3]
    return f"{organisation}/{repository}".rstrip("/"), file


def _hint(name: str) -> str:
    """What the user may have meant: a shipped model or a neighbour of the path."""
    path = Path(name).expanduser()
    if shipped := closest(name, _SHIPPED):
        return f"did you mean '{shipped}'?"
    neighbours = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    if found := closest(path.name, neighbours):
        return f"did you mean '{path.parent / found}'?"
    return "give a folder, a .gguf file, org/name, or `sample`"


def _fetch(repository: str, file: str, *, download: bool) -> Path:
    import huggingface_hub as hub
    from huggingface_hub import errors

    def failed(reason: str, hint: str) -> UserError:
        return UserError(f"model {repository!r} {reason}", hint)

    try:
        if file:
            return Path(hub.hf_hub_download(repository, file, local_files_only=not download))
        ignore = _unwanted(hub, repository) if download else [*_NEVER, *_PICKLES]
        return Path(hub.snapshot_download(repository, ignore_patterns=ignore, local_files_only=not download))
    except errors.GatedRepoError:
        raise failed("is gated", f"accept its terms at https://huggingface.co/{repository} and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise failed("was not found on Hugging Face", f"check the name, or set HF_TOKEN; {_hint(repository)}") from None
    except errors.RemoteEntryNotFoundError:
        raise failed(f"has no file {file!r} on Hugging Face", "check the file's name") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        reason = "is not in the local cache and Hugging Face was not asked or could not be reached"
        raise failed(reason, "go online, unset HF_HUB_OFFLINE, or give a local path") from None
    except Exception as error:  # the HTTP client's own errors have no common base that is public
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise failed(f"could not be downloaded: {reason}", "try again or give a local path") from None


def _unwanted(hub: Any, repository: str) -> list[str]:
    """Patterns not to download: other frameworks always, pickles where the repository has safetensors."""
    try:
        safe = any(item.endswith(".safetensors") for item in hub.HfApi().list_repo_files(repository))
    except Exception:  # whatever it is, snapshot_download meets it too, after a look into the cache
        safe = True
    return [*_NEVER, *_PICKLES] if safe else [*_NEVER]
