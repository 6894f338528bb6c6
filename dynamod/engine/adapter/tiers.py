"""A tier in memory of the host that an engine keeps on its own: from our settings, and what it has counted.

The files of such engines have no bound, so a tier of files is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamod.kvcache.store import LevelStatistics
from dynamod.kvcache.tier_settings import TierSettings, with_environment
from dynamod.message.errors import UserError

from ..arguments import Arguments
from .arguments import Names
from .blocks import Held


@dataclass
class HostTier:
    """Bytes that were copied to the tier and from it, and the seconds of the latter."""

    stored_bytes: float = 0.0
    loaded_bytes: float = 0.0
    load_seconds: float = 0.0

    def statistics(self, blocks: Held) -> LevelStatistics:
        """With the blocks that the engine has reported; a block's bytes are those of the stored ones on average."""
        size, loaded = self._block_bytes(blocks), round(self._loaded(blocks))
        seconds = round(self.load_seconds * 1000)
        return LevelStatistics(
            len(blocks), round(len(blocks) * size), blocks.came, blocks.went, loaded, 0, 0, 0, seconds
        )

    def load_seconds_of(self, blocks: Held) -> float:
        """What one block takes to load; 0 where none was."""
        loaded = self._loaded(blocks)
        return self.load_seconds / loaded if loaded else 0.0

    def _loaded(self, blocks: Held) -> float:
        size = self._block_bytes(blocks)
        return self.loaded_bytes / size if size else 0.0

    def _block_bytes(self, blocks: Held) -> float:
        return self.stored_bytes / blocks.came if blocks.came else 0.0


def split(names: Names, given: Mapping[str, Any]) -> tuple[TierSettings, dict[str, Any]]:
    """Our settings of tiers, those of the environment too, and the arguments that are the engine's.

    Raises UserError for what is wrong, what this machine has no room for, and for a tier of files.
    """
    fields = TierSettings.__struct_fields__
    ours: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in with_environment(given).items():
        (ours if key.replace("-", "_") in fields else rest)[key] = value
    known = Arguments(names.engine, TierSettings)
    tiers = known.read(ours, None)
    for name in ("kv_disk_gb", "kv_disk_path"):
        if getattr(tiers, name):
            hint = "leave it out, and do not set DYN_KVBM_DISK_CACHE_GB"
            raise refused(names, name, f"{names.product} does not bound its files, so it has no such tier", hint)
    if (problem := tiers.problem()) is not None:
        raise known.wrong(*problem)
    return tiers, rest


def refused(names: Names, name: str, problem: str, hint: str) -> UserError:
    """The error for a setting that an engine cannot have."""
    return UserError(f"{names.engine} argument {name}: {problem}", hint)


def given_once(names: Names, values: Mapping[str, Any], others: tuple[str, ...]) -> None:
    """Raise UserError where `values` have the engine's own arguments for a tier alongside `kv_host_gb`."""
    for other in others:
        if values.get(other):
            raise refused(names, "kv_host_gb", f"given together with {other}", "give one of them")
