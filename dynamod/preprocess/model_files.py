"""The files of a model that an ingress needs to tokenise and to render templates, for when it has none of its own.

    worker:   pack(card) ──► items ──► ingress: ModelBundle.add, .files ──► write ──► check ──► path to load

Of a model folder only files of known names travel, of a GGUF file its metadata as a small GGUF file; weights never do.
"""

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError

from . import bundle
from .bundle import FOLDER, GGUF, LIMIT, TEMPLATE, BundleError, read_list, write_list
from .card import checksum
from .source import open_source

LIST = "files.json"
"""The list of the files, kept next to them."""
_TEMPLATES = "additional_chat_templates"
_SUM = re.compile(r"[0-9a-f]{64}")


def verifiable(card: ModelCard) -> bool:
    """Whether the card has a checksum that files can be held against (and that is fit to name a folder)."""
    return _SUM.fullmatch(card.mdc_sum) is not None


def same_model(path: Path, card: ModelCard) -> bool:
    """Whether the files at `path` have the card's checksum. Raises UserError when they cannot be read.

    The sum covers EOS ids and context length. Each is the card's; or the files' own, when the card has been changed
    after it was read.
    """
    source = open_source(path)
    ends, lengths = {card.eos_token_ids, source.eos_ids}, {card.context_length, source.context_length}
    return any(checksum(source, *numbers) == card.mdc_sum for numbers in product(ends, lengths))


def is_here(card: ModelCard) -> bool:
    """Whether the files at the card's own path, if this machine has any there, have its checksum."""
    described = card.config_path or card.path
    try:
        return described != "" and verifiable(card) and same_model(Path(described), card)
    except (UserError, OSError):
        return False  # something else lies there, or nothing that may be read


# The worker's side.


def pack(card: ModelCard) -> list[bytes]:
    """The items that carry the model's files (see `bundle`). Reads them all: for a thread. Raises UserError."""
    return bundle.pack(collect(card))


def collect(card: ModelCard) -> dict[str, bytes]:
    """The content of the model's files by their keys. Raises UserError when they cannot be sent."""
    described = card.config_path or card.path
    if not described:
        raise UserError(f"model {card.name!r} has no files")
    path = Path(described)
    if path.is_dir():
        return _collect_folder(path)

    from .gguf_file import needed, read_metadata, to_bytes

    data = to_bytes(needed(read_metadata(path)))
    _fits(path, len(data))
    return {GGUF: data}


def _collect_folder(folder: Path) -> dict[str, bytes]:
    paths = {name: folder / name for name in FOLDER}
    for path in sorted(folder.glob(f"{_TEMPLATES}/*.jinja")):
        if not bundle.known(TEMPLATE + path.stem):
            raise UserError(f"the chat template {path} cannot be sent", "rename it: letters, digits, '_', '-', '.'")
        paths[TEMPLATE + path.stem] = path
    paths = {name: path for name, path in paths.items() if path.is_file()}
    _fits(folder, sum(path.stat().st_size for path in paths.values()))
    return {name: path.read_bytes() for name, path in paths.items()}


def _fits(path: Path, size: int) -> None:
    if size > LIMIT:
        problem = f"the tokenizer of {path} has {size >> 20} MB, at most {LIMIT >> 20} MB are sent to other machines"
        raise UserError(problem, "copy the model's files to the frontend's machine, to the same path")


# The ingress's side.


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a bundle and their list into an empty folder. Raises OSError."""
    content = {_path(folder, name): data for name, data in files.items()}
    for path, data in {**content, folder / LIST: write_list(files)}.items():
        path.parent.mkdir(exist_ok=True)
        with path.open("xb") as file:
            file.write(data)


def check(folder: Path, card: ModelCard) -> Path:
    """Read all that `write` left in `folder`, and return the path to load the model from.

    Raises BundleError when the files are damaged or not those of the card, and OSError when they cannot be read.
    """
    files = read_list((folder / LIST).read_bytes())
    for file in files:
        path = _path(folder, file.name)
        if path.is_symlink() or path.stat().st_size != file.size:
            raise BundleError(f"{file.name} is damaged")
        file.check(path.read_bytes())
    listed = {folder / LIST, *(_path(folder, file.name) for file in files)}
    if more := [path.name for path in folder.rglob("*") if not path.is_dir() and path not in listed]:
        raise BundleError(f"{more[0]} does not belong there")
    path = folder / GGUF if files[0].name == GGUF else folder
    try:
        same = same_model(path, card)
    except UserError as error:
        raise BundleError(error.line()) from None
    if not same:
        raise BundleError("the files are not those of the model: another tokenizer, template or context length")
    return path


def _path(folder: Path, name: str) -> Path:
    """Where a file lies; `name` is a key that has been checked."""
    if name.startswith(TEMPLATE):
        return folder / _TEMPLATES / f"{name.removeprefix(TEMPLATE)}.jinja"
    return folder / name
