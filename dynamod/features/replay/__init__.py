"""Replay: traces through the real router and the real mocker scheduler, in virtual time."""

from dynamod.extension.feature import Feature


def _bench() -> object:
    from .cli import app

    return app


FEATURE = Feature(
    "replay",
    "dynamo bench: traces through the real router and scheduler, in virtual time",
    uses=("planner", "prefill"),
    commands={"bench": _bench},
)
