"""Prefill/decode disaggregation: workers that compute prompts for the workers that answer."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

from .settings import PrefillSettings, TransferSettings

if TYPE_CHECKING:
    from dynamod.cli.preflight import Checked
    from dynamod.ingress.dispatcher import Dispatcher
    from dynamod.migration.stages import StageContext


def _stages(context: "StageContext") -> object:
    from .ingress import Prompts

    return Prompts(context).begin


def _dispatch(dispatcher: "Dispatcher") -> object:
    from .dispatch import PrefillDispatch

    return PrefillDispatch(dispatcher)


def _worker() -> type:
    from .worker import Handoffs

    return Handoffs


def _check(workers: "Sequence[Checked]") -> None:
    from .preflight import check_pairs

    check_pairs(workers)


def _note() -> Callable[[Any], str]:
    from .show import prefill

    return prefill


FEATURE = Feature(
    "prefill",
    "workers that compute prompts for the workers that answer (prefill/decode disaggregation)",
    settings={"processor": PrefillSettings, "worker": TransferSettings},
    stages=_stages,
    dispatch=_dispatch,
    worker=_worker,
    roles=("prefill", "decode"),
    helpers={"prefill": "needs_prefill"},
    checks=_check,
    notes={"prefill": _note},
)
