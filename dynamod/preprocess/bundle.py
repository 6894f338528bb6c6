"""What travels when a worker sends an ingress the files of a model: a list of the files, then their content in pieces.

Names that travel are keys, and only known ones are taken: none of them is a path. Nothing that is received is executed:
it is JSON, numbers, and chat templates for the sandbox.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

CHUNK = 256 * 1024
"""Bytes of the largest item."""
LIMIT = 64 * 1024 * 1024
"""Bytes of all files together."""
MOST = 64
"""Files."""

GGUF = "model.gguf"
_JSON = ("config", "generation_config", "tokenizer", "tokenizer_config", "special_tokens_map", "chat_template")
FOLDER = (*(f"{name}.json" for name in _JSON), "chat_template.jinja")
"""What `folder_source` reads of a model folder; named chat templates have a key that begins with TEMPLATE."""
TEMPLATE = "template:"
_TEMPLATE = re.compile(f"{TEMPLATE}[A-Za-z0-9_-][A-Za-z0-9_.-]{{0,63}}")


class BundleError(ValueError):
    """What was received, or what lies in a folder, is not what makes the model."""


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file by its key, its size in bytes and the BLAKE2b-256 of its content in hex."""

    name: str
    size: int
    digest: str

    def check(self, data: bytes) -> None:
        """Raises BundleError when `data` is not the file's content."""
        if len(data) != self.size or _digest(data) != self.digest:
            raise BundleError(f"{self.name} is damaged")


_files = msgspec.json.Decoder(list[File])


def known(name: str) -> bool:
    """Whether a key may name a file of a model."""
    return name in FOLDER or name == GGUF or _TEMPLATE.fullmatch(name) is not None


def write_list(files: Mapping[str, bytes]) -> bytes:
    """The list of some files, as JSON."""
    return msgspec.json.encode([File(name, len(data), _digest(data)) for name, data in files.items()])


def read_list(data: bytes) -> list[File]:
    """Raises BundleError for a list with names that are not known or doubled, or with more than the limits allow."""
    try:
        files = _files.decode(data)
    except msgspec.MsgspecError as error:
        raise BundleError(f"the list of files is broken: {error}") from None
    names = [file.name for file in files]
    if wrong := [name for name in names if not known(name)]:
        raise BundleError(f"a file of the name {wrong[0]!r:.80} is no part of a model")
    if not files or len(files) > MOST or len(set(names)) < len(names) or (GGUF in names and len(names) > 1):
        raise BundleError(f"the files make no model: {', '.join(names[:MOST]) or 'none'}")
    if any(file.size < 0 for file in files) or sum(file.size for file in files) > LIMIT:
        raise BundleError(f"the files are larger than {LIMIT >> 20} MB")
    return files


def pack(files: Mapping[str, bytes]) -> list[bytes]:
    """The items that carry the files: their list, then pieces of at most CHUNK bytes, in order."""
    data = b"".join(files.values())
    return [write_list(files), *(data[start : start + CHUNK] for start in range(0, len(data), CHUNK))]


class ModelBundle:
    """Takes items as they come and refuses what does not belong. `size`: bytes of all files, None before the list."""

    def __init__(self) -> None:
        self._files: list[File] = []
        self._pieces: list[bytes] = []
        self.size: int | None = None
        self.received = 0

    def add(self, item: Any) -> None:
        """Take the next item. Raises BundleError; the bundle is of no use then."""
        if not isinstance(item, bytes) or not 0 < len(item) <= CHUNK:
            raise BundleError("an item is no piece of a file")
        if self.size is None:
            self._files = read_list(item)
            self.size = sum(file.size for file in self._files)
            return
        if self.received + len(item) > self.size:
            raise BundleError(f"more came than the {self.size} bytes that were announced")
        self.received += len(item)
        self._pieces.append(item)

    def files(self) -> dict[str, bytes]:
        """The content by name, when all has come. Raises BundleError for what is missing or damaged."""
        if self.size is None or self.received != self.size:
            raise BundleError(f"only {self.received} of {self.size or 0} bytes came")
        data, at = b"".join(self._pieces), 0
        found: dict[str, bytes] = {}
        for file in self._files:
            found[file.name] = data[at : at + file.size]
            file.check(found[file.name])
            at += file.size
        return found


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
