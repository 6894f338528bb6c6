"""KV blocks that a worker has stored, for other workers of the model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

from .settings import PeerSettings

if TYPE_CHECKING:
    from dynamod.ingress.dispatcher import Dispatcher
    from dynamod.migration.stages import StageContext


def _dispatch(dispatcher: "Dispatcher") -> object:
    from .dispatch import PeerDispatch

    return PeerDispatch(dispatcher)


def _source() -> object:
    from .peers import PeerFetch

    def make(context: "StageContext") -> object:
        return PeerFetch(context.view, context.transport, context.dispatch["tiers"].counts.__getitem__).open

    return make


def _note() -> Callable[[Any], str]:
    from .show import peer

    return peer


FEATURE = Feature(
    "tiers",
    "KV blocks of prompts are read from other workers that have them",
    requires=("prefill",),
    settings={"processor": PeerSettings},
    dispatch=_dispatch,
    extends={"prefill": _source},
    notes={"peer": _note},
)
