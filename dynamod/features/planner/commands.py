"""Commands of the control socket: looking at planners, and steering them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dynamod.extension.command import Command

Least = Annotated[int, Meta(ge=0, le=256, description="a whole number from 0 to 256")]
Most = Annotated[int, Meta(ge=1, le=256, description="a whole number from 1 to 256")]


class PlannerArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`component`: one pool; empty for all."""

    component: str = ""


class PlanArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`component`: one pool; empty for all. `min`, `max`: limits of the action `set`."""

    action: Literal["pause", "resume", "set"]
    component: str = ""
    min: Least | None = None
    max: Most | None = None


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pool. `state`: `active`, or why the planner changes nothing. `min`, `max`: workers. `process`: the planner's.

    `in_progress`: a change has begun and is not done. `records`: the last ticks as JSON (pool.Record), `last`
    the newest of them, None before the first.
    """

    component: str = ""
    state: str = ""
    min: int = 0
    max: int = 0
    in_progress: bool = False
    last: dict[str, Any] | None = None
    records: list[dict[str, Any]] = []
    process: str = ""


PLANNER = Command("planner", PlannerArguments, list[PoolStatus], "The pools of all planners, with their last ticks.")
PLAN = Command("plan", PlanArguments, list[PoolStatus], "Pause planners, resume them, or set limits.", changes=True)
