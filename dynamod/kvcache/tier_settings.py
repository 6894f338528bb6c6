"""Settings of the tiers below the device, as arguments of an engine; whether a machine has room for them."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.message.errors import UserError
from dynamod.observe.memory import returned

GB = 10**9
ENVIRONMENT = {"DYN_KVBM_CPU_CACHE_GB": "kv_host_gb", "DYN_KVBM_DISK_CACHE_GB": "kv_disk_gb"}
"""NVIDIA Dynamo's variables, for settings that are not given."""

NO_CACHE = "off, but tiers hold what it keeps: leave out kv_host_gb and kv_disk_gb"
"""Why an engine refuses tiers without its prefix cache."""

_Size = Annotated[float, Meta(ge=0)]


class TierSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kv_host_gb`, `kv_disk_gb`: gigabytes (10^9 bytes) of KV blocks in memory of the host, and in files; 0: none.

    `kv_disk_path`: folder of the files, by default `dynamod/kv` in the user's cache folder. `kv_offload_after`: a block
    is copied once so many prompts had it; 1: every block.
    """

    kv_host_gb: _Size = 0.0
    kv_disk_gb: _Size = 0.0
    kv_disk_path: str = ""
    kv_offload_after: Annotated[int, Meta(ge=1, le=1000)] = 2

    @property
    def takes_room(self) -> bool:
        """Whether the blocks of the tiers have bytes."""
        return True

    @property
    def tiered(self) -> str:
        """The setting that asks for a tier; "" where there is none."""
        return next((name for name in ("kv_host_gb", "kv_disk_gb") if getattr(self, name) > 0), "")

    @property
    def disk_folder(self) -> Path:
        """Where files go."""
        if self.kv_disk_path:
            return Path(self.kv_disk_path).expanduser().absolute()
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(cache).expanduser().absolute() / "dynamod" / "kv"

    def problem(self) -> tuple[str, str] | None:
        """What this machine has no room for, as a setting's name and what is wrong; None when all is well."""
        free = free_memory() + returned()
        if not math.isfinite(self.kv_host_gb) or self.kv_host_gb * GB > free:
            return "kv_host_gb", f"{self.kv_host_gb:g} GB, but {free / GB:.1f} GB of memory are free"
        if not self.kv_disk_gb:
            return None
        folder = self.disk_folder
        there = existing(folder)
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            return "kv_disk_path", f"{folder} cannot be written"
        free = shutil.disk_usage(there).free
        if not self.kv_disk_gb * GB <= free and not self.kv_disk_gb * GB <= (free := free + folder_bytes(folder)):
            return "kv_disk_gb", f"{self.kv_disk_gb:g} GB, but {free / GB:.1f} GB are free at {folder}"
        return None


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def folder_bytes(folder: Path) -> int:
    """Bytes that all files of blocks below a folder occupy."""
    try:
        folders = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for path in folders for entry in entries(path))
    except OSError:
        return 0


def entries(path: Path | str) -> "Iterator[os.DirEntry[str]]":
    """The files in the folders of a folder."""
    for folder in os.scandir(path):
        if folder.is_dir(follow_symlinks=False):
            yield from os.scandir(folder.path)


def with_environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with those of the environment where a user has given none. Raises UserError."""
    values = dict(given)
    known = {key.replace("-", "_") for key in given}
    for variable, name in ENVIRONMENT.items():
        text = os.environ.get(variable, "")
        if not text or name in known:
            continue
        try:
            values[name] = float(text)
        except ValueError:
            raise UserError(f"{variable} is {text!r}", "give gigabytes, for example 4") from None
    return values


def free_memory() -> int:
    """Bytes of memory that can be had without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2
