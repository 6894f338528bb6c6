"""Volumes of ConfigMaps and Secrets in a folder, as a kubelet writes them: all files of a volume change at once."""

import base64
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT_MODE = 0o644
DATA = "..data"
"""The link to the folder of the files that count; the name of a file is a link through it."""
_numbers = itertools.count(1)


class File(NamedTuple):
    """One file of a volume."""

    content: bytes
    mode: int


class Missing(Exception):
    """A key that a volume names, and its object lacks: a kubelet does not start such a pod."""


def files(source: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, File]:
    """The files of a volume by their path in it. `source`: the volume. `found`: its ConfigMap or Secret."""
    contents = {name: text.encode() for name, text in found.get("data", {}).items()}
    if found["kind"] == "Secret":
        contents = {name: base64.b64decode(text) for name, text in found.get("data", {}).items()}
    mode = source.get("defaultMode", DEFAULT_MODE)
    items: Iterable[Mapping[str, Any]] = source.get("items") or ({"key": name, "path": name} for name in contents)
    made = {}
    for item in items:
        if item["key"] in contents:
            made[item["path"]] = File(contents[item["key"]], item.get("mode", mode))
        elif not source.get("optional"):
            raise Missing(f"{found['metadata']['name']} has no key {item['key']}")
    return made


def write(folder: Path, wanted: Mapping[str, File]) -> bool:
    """Make these the files of the folder, in one step; returns whether one has changed."""
    data, before = folder / DATA, None
    if data.is_symlink():
        before = data.resolve()
        if wanted == {str(one.relative_to(before)): _read(one) for one in before.rglob("*") if one.is_file()}:
            return False
    version = folder / f"..version_{next(_numbers)}"
    version.mkdir(mode=0o755)
    for name, file in wanted.items():
        path = version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
    beside = folder / f"{DATA}_tmp"
    beside.symlink_to(version.name)
    os.replace(beside, data)  # from here on all links lead to the new files
    tops = {name.partition("/")[0] for name in wanted}
    for name in tops:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{DATA}/{name}")
    for one in folder.iterdir():
        if one.is_symlink() and one.name not in (DATA, *tops):
            one.unlink()
    if before is not None:
        shutil.rmtree(before)
    return True


def _read(path: Path) -> File:
    return File(path.read_bytes(), path.stat().st_mode & 0o777)


class Volumes:
    """The volumes of one pod that ConfigMaps and Secrets fill. `read` gets an object by its plural and its name."""

    def __init__(self, read: Callable[[str, str], Any]) -> None:
        self._read = read
        self._filled: list[tuple[Path, str, str, Mapping[str, Any]]] = []

    def fill(self, folder: Path, volume: Mapping[str, Any]) -> None:
        """Write the files of a volume. Other kinds of volumes stay empty folders. Raises Missing."""
        for key, plural, name in (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")):
            if (source := volume.get(key)) is not None:
                self._filled.append((folder, plural, source[name], source))
                write(folder, files(source, self._read(plural, source[name])))

    def refresh(self) -> None:
        """Write what has changed in ConfigMaps and Secrets. A key that is now missing changes nothing."""
        for folder, plural, name, source in self._filled:
            try:
                write(folder, files(source, self._read(plural, name)))
            except (Missing, OSError):
                continue  # as a kubelet does: the volume stays, and the next look may find the object
