"""Prefill/decode disaggregation: workers that compute prompts for the workers that answer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

from .settings import PrefillSettings

if TYPE_CHECKING:
    from dynamod.ingress.dispatcher import Dispatcher
    from dynamod.migration.stages import StageContext


def _stages(context: "StageContext") -> object:
    from .ingress import Prompts

    return Prompts(context).begin


def _dispatch(dispatcher: "Dispatcher") -> object:
    from .dispatch import PrefillDispatch

    return PrefillDispatch(dispatcher)


def _note() -> Callable[[Any], str]:
    from .show import prefill

    return prefill


FEATURE = Feature(
    "prefill",
    "workers that compute prompts for the workers that answer (prefill/decode disaggregation)",
    settings={"processor": PrefillSettings},
    stages=_stages,
    dispatch=_dispatch,
    notes={"prefill": _note},
)
