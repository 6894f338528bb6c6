"""Which files of a repository are one model. Pure: the list of files is given."""

import math
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import NamedTuple

from dynamod.message.errors import UserError
from dynamod.message.hints import near

from .reference import Reference

DEFAULT = "Q4_K_M"
"""The quantization for a command that names none."""

_NEVER = ("*.h5", "*.msgpack", "*.onnx", "*.tflite", "*.mlmodel", "original/*", "onnx/*", "flax_model*", "tf_model*")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_GGUF = ".gguf"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_LABEL = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|FP?16|FP?32|MXFP4\w*))(?=$|[-./])", re.IGNORECASE)
_BESIDE = ("mmproj*", "*imatrix*")
"""GGUF files that are no language model."""

Sizes = Mapping[str, int | None]
"""Files of a repository by their path, with their bytes where they are known."""


class Selection(NamedTuple):
    """Files to load. `main`: the GGUF file, or the first of its shards; empty when the folder is the model."""

    files: tuple[str, ...]
    main: str = ""


def select(sizes: Sizes, wanted: Reference, *, weights: bool = True) -> Selection:
    """The files of a model. `weights` false: only what a tokenizer and a template need, where they are apart.

    Raises UserError when the repository has no such file or quantization, or several and none was chosen.
    """
    groups = quantizations(sizes)
    if wanted.file:
        return _one_file(sizes, wanted)
    if wanted.quantization or (groups and not _has(sizes, ("*.safetensors", *_PICKLES))):
        return _one_quantization(sizes, groups, wanted)
    left_out = [*_NEVER, "*.gguf"]
    if _has(sizes, ("*.safetensors",)):
        left_out += _PICKLES
    if _has(sizes, ("model*.safetensors",)):
        left_out.append("consolidated*.safetensors")  # the same weights once more
    if not weights:
        left_out += ["*.safetensors", *_PICKLES]
    return Selection(tuple(sorted(file for file in sizes if not _matches(file, left_out))))


def quantizations(sizes: Sizes) -> dict[str, list[str]]:
    """The GGUF models of a repository: their quantization (else their name), with their shards in order."""
    found: dict[str, list[str]] = {}
    for file in sorted(sizes):
        if file.lower().endswith(_GGUF) and not _matches(PurePosixPath(file).name.lower(), _BESIDE):
            name = _SHARD.sub("", file[: -len(_GGUF)])
            labels = _LABEL.findall(name)
            found.setdefault(labels[-1] if labels else PurePosixPath(name).name, []).append(file)
    return found


def has_weights(files: Sizes) -> bool:
    """Whether an engine can compute with these files."""
    return _has(files, ("*.safetensors", "*.gguf", *_PICKLES))


def size(sizes: Sizes, files: list[str]) -> int:
    """Bytes of some files, as far as they are known."""
    return sum(sizes[file] or 0 for file in files)


def bytes_text(count: float) -> str:
    """`812 B`, `3.6 MB`, `16.1 GB`."""
    power = min(int(math.log10(max(count, 1)) // 3), 4)
    return f"{count / 1000**power:.{1 if power else 0}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _one_file(sizes: Sizes, wanted: Reference) -> Selection:
    shard = _SHARD.search(wanted.file[: -len(_GGUF)])
    files = [wanted.file]
    if shard is not None and wanted.file.lower().endswith(_GGUF):
        name, count = wanted.file[: shard.start()], shard[2]
        files = [f"{name}-{number:05}-of-{count}{wanted.file[-5:]}" for number in range(1, int(count) + 1)]
    for file in files:
        if file not in sizes:
            hint = near(file, sizes) or "check the file's name"
            raise UserError(f"model '{wanted.repository}' has no file '{file}' on Hugging Face", hint.strip())
    return Selection(tuple(files), files[0])


def _one_quantization(sizes: Sizes, groups: Mapping[str, list[str]], wanted: Reference) -> Selection:
    repository = f"model '{wanted.repository}'"
    if not groups:
        raise UserError(f"{repository} has no GGUF files", f"leave out {wanted.suffix}")
    known = {label.upper(): label for label in groups}
    there = ", ".join(f"{label} ({bytes_text(size(sizes, files))})" for label, files in groups.items())
    label = known.get(wanted.quantization.upper() or DEFAULT)
    if label is None and wanted.quantization:
        hint = f"{near(wanted.quantization, groups)}it has: {there}"
        raise UserError(f"{repository} has no quantization '{wanted.quantization}'", hint)
    if label is None and len(groups) > 1:
        example = f"{wanted.repository}:{next(iter(groups))}"
        raise UserError(f"{repository} has several quantizations: {there}", f"choose one, for example {example}")
    files = groups[label or next(iter(groups))]
    whole = _one_file(sizes, wanted._replace(file=files[0], quantization=""))
    if set(whole.files) != set(files):
        hint = f"choose a file, for example {wanted.repository}/{files[0]}"
        raise UserError(f"{repository} has several models of this quantization: {', '.join(files)}", hint)
    return whole


def _has(sizes: Sizes, patterns: tuple[str, ...]) -> bool:
    return any(_matches(file, patterns) and not _matches(file, _NEVER) for file in sizes)


def _matches(file: str, patterns: list[str] | tuple[str, ...]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)
