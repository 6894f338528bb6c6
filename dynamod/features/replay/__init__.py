"""Replay: traces through the real router and the real mocker scheduler, in virtual time."""

from dynamod.extension.feature import Feature


def _bench() -> object:
    from .cli import app

    return app


FEATURE = Feature("replay", "dynamo bench: traces through router, scheduler and planner", commands={"bench": _bench})
