"""Requests that were at a worker which crashed: tried alone, and convicted or acquitted."""

from typing import Any

from dynamod.extension.feature import Feature


def _stages(context: Any) -> Any:
    from .stage import RequestSuspicions

    return RequestSuspicions(context.view, context.now, context.node).begin


def _dispatch(dispatcher: Any) -> Any:
    from .trials import Trials

    return Trials(dispatcher)


FEATURE = Feature(
    "isolation",
    "a request that crashes workers is found and refused, and costs at most two of them",
    stages=_stages,
    dispatch=_dispatch,
)
