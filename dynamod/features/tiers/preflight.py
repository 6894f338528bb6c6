"""Before a process starts: whether the tiers of a machine have room, and `kv_peer_fetch` has hand-offs."""

import shutil
from collections.abc import Sequence
from typing import NamedTuple

from dynamod.cli.preflight import Checked
from dynamod.extension.installed import require
from dynamod.graph.graph import PROCESSOR, Graph
from dynamod.graph.typed import validate
from dynamod.ingress.settings import ProcessorSettings
from dynamod.kvcache import tier_settings
from dynamod.kvcache.tier_settings import GB, TierSettings, existing
from dynamod.message.errors import UserError
from dynamod.observe.memory import returned
from dynamod.runtime.components import kind_of


def check(workers: Sequence[Checked]) -> None:
    """Raise UserError where the tiers of all workers on this node do not fit, or `kv_peer_fetch` cannot be.

    Workers that planners add later are not counted.
    """
    shares: list[Share] = []
    for one in workers:
        spec, read = one.spec, one.read
        here = spec.enabled and (not spec.nodes or one.node in spec.nodes)
        if here and isinstance(read, TierSettings) and read.takes_room and read.tiered:
            shares.append(Share(spec.name, spec.workers, read))
    if workers:
        _check_reading(workers[0].graph)
        shares = _together(workers[0].graph, shares)
    problem = shortage(shares)
    if problem is not None:
        hint = "each worker has a tier of its own: make them smaller, or the workers fewer"
        raise UserError(problem, hint)


def _check_reading(graph: Graph) -> None:
    for spec in graph.services.values():
        if spec.component_kind == PROCESSOR:
            settings = validate(ProcessorSettings, spec.config, spec.name)
            if getattr(settings, "kv_peer_fetch", False):
                require("prefill", f"{spec.name}.kv_peer_fetch")


class Share(NamedTuple):
    """The tiers of a component: `workers` on this machine have them, each its own."""

    component: str
    workers: int
    tiers: TierSettings


def shortage(shares: Sequence[Share]) -> str | None:
    """What this machine has no room for when all of these workers have filled their tiers; None when all is well."""
    hosts = [share for share in shares if share.tiers.kv_host_gb]
    free = tier_settings.free_memory() + returned()
    if sum(share.workers * share.tiers.kv_host_gb for share in hosts) * GB > free:
        return f"{_said(hosts, 'kv_host_gb')}, but {free / GB:.1f} GB of memory are free"
    systems: dict[int, list[Share]] = {}
    for share in shares:
        if share.tiers.kv_disk_gb:
            systems.setdefault(existing(share.tiers.disk_folder).stat().st_dev, []).append(share)
    for disks in systems.values():
        wanted = sum(share.workers * share.tiers.kv_disk_gb for share in disks) * GB
        folders = dict.fromkeys(share.tiers.disk_folder for share in disks)
        free = shutil.disk_usage(existing(next(iter(folders)))).free
        if wanted > free and wanted > (free := free + sum(tier_settings.folder_bytes(folder) for folder in folders)):
            where = " and ".join(map(str, folders))
            return f"{_said(disks, 'kv_disk_gb')}, but {free / GB:.1f} GB are free at {where}"
    return None


def _said(shares: Sequence[Share], name: str) -> str:
    keys = " and ".join(f"{share.component}.{name}" for share in shares)
    sizes = [f"{share.workers} x " * (share.workers > 1) + f"{getattr(share.tiers, name):g} GB" for share in shares]
    return f"{keys}: {' and '.join(sizes)}"


def _together(graph: Graph, shares: list[Share]) -> list[Share]:
    """The shares of the workers that run at the same time: of models on demand the largest that the budget allows."""
    for spec in graph.services.values():
        kind = kind_of(spec.component_kind) if spec.component_kind else None
        if kind is None or kind.starts is None:
            continue
        components, most = kind.starts(validate(kind.settings(), spec.config, spec.name))
        largest = sorted(
            (share._replace(workers=1) for share in shares if share.component in components),
            key=lambda share: share.tiers.kv_host_gb + share.tiers.kv_disk_gb,
            reverse=True,
        )
        shares = [share for share in shares if share.component not in components]
        shares += largest[:most]
    return shares
