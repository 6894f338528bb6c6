"""What a user types for a model: a shipped one, a path, or a model of Hugging Face; and the name it is served under."""

import re
from pathlib import Path
from typing import NamedTuple

from .packaged import PACKAGED

SHIPPED = ("sample", "sample.gguf")
_PREFIX = "hf://"
_REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_CACHED = re.compile(r"models--(.+?)--(.+)")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


class Reference(NamedTuple):
    """A model of Hugging Face: all of a repository, one file of it, or one quantization of its GGUF files."""

    repository: str
    file: str = ""
    quantization: str = ""

    def __str__(self) -> str:
        """As a user types it."""
        return self.repository + (f"/{self.file}" if self.file else "") + self.suffix

    @property
    def suffix(self) -> str:
        """The quantization with its colon, or nothing."""
        return f":{self.quantization}" if self.quantization else ""


def reference(name: str) -> Reference | None:
    """`org/name`, `org/name:Q4_K_M`, `org/name/file.gguf`, with or without hf://; None for what only a path can be."""
    organisation, repository, file = [*name.removeprefix(_PREFIX).split("/", 2), "", ""][:3]
    repository, _, quantization = repository.partition(":")
    found = Reference(f"{organisation}/{repository}".rstrip("/"), file, quantization)
    looks_local = name.startswith((".", "/", "~")) or (name.endswith(".gguf") and not file)
    wrong = looks_local or bool(file and quantization) or not _REPOSITORY.fullmatch(found.repository)
    return None if wrong else found


def is_local(name: str) -> bool:
    """Whether the name is a path that is there."""
    return bool(name) and not name.startswith(_PREFIX) and Path(name).expanduser().exists()


def model_name(name: str, path: Path) -> str:
    """The name to serve a model under, when the user gave none.

    `org/name` of Hugging Face stays as given, with its quantization (also when `path` lies in its cache); a folder is
    its last component; a packaged model as typed; a GGUF file its name without `.gguf` and the number of a shard.
    """
    if name in SHIPPED:
        return "sample"
    if name in PACKAGED and not is_local(name):
        return name
    found = None if is_local(name) else reference(name)
    if found is not None and not found.file:
        return str(found)
    path = Path(path).expanduser().absolute()
    if path.suffix.lower() == ".gguf":
        return _SHARD.sub("", path.stem)
    cached = _CACHED.fullmatch(path.parent.parent.name) if path.parent.name == "snapshots" else None
    return f"{cached[1]}/{cached[2]}" if cached else path.name
