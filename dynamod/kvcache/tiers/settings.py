"""Settings of the tiers, as arguments of an engine; and the tiers made of them."""

import asyncio
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from dynamod.message.errors import UserError
from dynamod.observe.memory import returned

from .disk import DiskLevel
from .files import BlockFiles, folder_bytes
from .level import HostLevel, Level, Publish
from .tiers import Tiers
from .unowned import remove_unowned

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
    def tiered(self) -> bool:
        """Whether there is a tier."""
        return self.kv_host_gb > 0 or self.kv_disk_gb > 0

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
        there = _existing(folder)
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            return "kv_disk_path", f"{folder} cannot be written"
        free = shutil.disk_usage(there).free
        if not self.kv_disk_gb * GB <= free and not self.kv_disk_gb * GB <= (free := free + folder_bytes(folder)):
            return "kv_disk_gb", f"{self.kv_disk_gb:g} GB, but {free / GB:.1f} GB are free at {folder}"
        return None


class Share(NamedTuple):
    """The tiers of a component: `workers` on this machine have them, each its own."""

    component: str
    workers: int
    tiers: TierSettings


def shortage(shares: Sequence[Share]) -> str | None:
    """What this machine has no room for when all of these workers have filled their tiers; None when all is well."""
    hosts = [share for share in shares if share.tiers.kv_host_gb]
    free = free_memory() + returned()
    if sum(share.workers * share.tiers.kv_host_gb for share in hosts) * GB > free:
        return f"{_said(hosts, 'kv_host_gb')}, but {free / GB:.1f} GB of memory are free"
    systems: dict[int, list[Share]] = {}
    for share in shares:
        if share.tiers.kv_disk_gb:
            systems.setdefault(_existing(share.tiers.disk_folder).stat().st_dev, []).append(share)
    for disks in systems.values():
        wanted = sum(share.workers * share.tiers.kv_disk_gb for share in disks) * GB
        folders = dict.fromkeys(share.tiers.disk_folder for share in disks)
        free = shutil.disk_usage(_existing(next(iter(folders)))).free
        if wanted > free and wanted > (free := free + sum(folder_bytes(folder) for folder in folders)):
            where = " and ".join(map(str, folders))
            return f"{_said(disks, 'kv_disk_gb')}, but {free / GB:.1f} GB are free at {where}"
    return None


def _said(shares: Sequence[Share], name: str) -> str:
    keys = " and ".join(f"{share.component}.{name}" for share in shares)
    sizes = [f"{share.workers} x " * (share.workers > 1) + f"{getattr(share.tiers, name):g} GB" for share in shares]
    return f"{keys}: {' and '.join(sizes)}"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


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


async def open_tiers(settings: TierSettings, layout: str, publish: Publish) -> Tiers | None:
    """The tiers; None without any. `layout`: what must agree for the bytes of a block to mean the same.

    Raises UserError for a folder that cannot be used.
    """
    levels: list[Level] = []
    if settings.kv_host_gb:
        levels.append(HostLevel(round(settings.kv_host_gb * GB), publish))
    if settings.kv_disk_gb:
        most = round(settings.kv_disk_gb * GB)
        files = await asyncio.to_thread(BlockFiles, settings.disk_folder, layout)
        known = await asyncio.to_thread(files.scan)
        missing = most - sum(size for _name, size in known)
        await asyncio.to_thread(remove_unowned, settings.disk_folder, missing)
        levels.append(DiskLevel(most, publish, files, known))
    return Tiers(levels, settings.kv_offload_after) if levels else None


def free_memory() -> int:
    """Bytes of memory that can be had without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2
