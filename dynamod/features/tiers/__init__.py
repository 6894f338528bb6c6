"""KV blocks in memory of the host and in files, below the device; KV blocks of other workers of the model."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature
from dynamod.extension.installed import require
from dynamod.message.errors import UserError

from .settings import PeerSettings

if TYPE_CHECKING:
    from dynamod.cli.preflight import Checked
    from dynamod.ingress.dispatcher import Dispatcher
    from dynamod.kvcache.store import BlockStores
    from dynamod.migration.stages import StageContext
    from dynamod.router.overlap import MakeSource


def _dispatch(dispatcher: "Dispatcher") -> object:
    try:
        require("prefill", "kv_peer_fetch")
    except UserError as error:
        from dynamod.ingress.dispatch_stage import DispatchStage

        if getattr(dispatcher.config, "kv_peer_fetch", False):
            logging.getLogger("dynamod.frontend").warning("no blocks are read from other workers: %s", error)
        return DispatchStage()
    from .dispatch import PeerDispatch

    return PeerDispatch(dispatcher)


def _index() -> "MakeSource":
    from .index import TierIndex

    return TierIndex


def _stores() -> "BlockStores":
    from .opening import TierStores

    return TierStores()


def _check(workers: "Sequence[Checked]") -> None:
    from .preflight import check

    check(workers)


def _source() -> object:
    from .peers import PeerFetch

    def make(context: "StageContext") -> object | None:
        dispatch = context.dispatch["tiers"]
        if not dispatch.needs_blocks:
            return None
        return PeerFetch(context.view, context.transport, dispatch.counts.__getitem__).open

    return make


def _note() -> Callable[[Any], str]:
    from .show import peer

    return peer


FEATURE = Feature(
    "tiers",
    "KV blocks in memory of the host and in files; blocks of prompts are read from other workers that have them",
    uses=("prefill",),
    settings={"processor": PeerSettings},
    dispatch=_dispatch,
    overlaps=_index,
    block_stores=_stores,
    checks=_check,
    extends={"prefill": _source},
    notes={"peer": _note},
)
