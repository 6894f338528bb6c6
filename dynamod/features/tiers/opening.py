"""Makes the tiers of a worker: real ones, and ones without bytes for simulations."""

import asyncio

from dynamod.kvcache.store import Publish
from dynamod.kvcache.tier_settings import GB, TierSettings

from .disk import DiskLevel
from .files import BlockFiles
from .level import HostLevel, Level
from .store import Tiers
from .unowned import remove_unowned


class TierStores:
    """`kvcache.store.BlockStores`."""

    async def open(self, settings: TierSettings, layout: str, publish: Publish) -> Tiers | None:
        """The tiers; None without any. Raises UserError for a folder that cannot be used."""
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

    def simulated(self, settings: TierSettings, publish: Publish) -> Tiers | None:
        """Tiers without bytes; None without any."""
        levels = [
            Level("CPU_PINNED", round(settings.kv_host_gb * GB), publish),
            Level("DISK", round(settings.kv_disk_gb * GB), publish),
        ]
        levels = [level for level in levels if level.most]
        return Tiers(levels, settings.kv_offload_after) if levels else None
