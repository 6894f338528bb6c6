"""Workers that change between prefill and decode without a start: `dynamo switch`, and a planner that asks for it."""

from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamod.extension.command import CommandHandler


def _command() -> object:
    from .cli import app

    return app


def _controls() -> "Sequence[CommandHandler[Any, Any]]":
    from .control import HANDLERS

    return HANDLERS


def _orders() -> object:
    from .shared_pools import pool_orders

    return pool_orders


def _worker() -> type:
    from .worker import RoleSwitch

    return RoleSwitch


FEATURE = Feature(
    "role_switch",
    "workers change between prefill and decode while they run: dynamo switch; autoscaled pools share workers",
    requires=("prefill",),
    uses=("planner",),
    commands={"switch": _command},
    controls=_controls,
    extends={"planner": _orders},
    worker=_worker,
)
