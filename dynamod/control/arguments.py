"""Arguments of the core's commands. The description of a field says which values are allowed."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.message.control import FINISH

Whole = Annotated[int, Meta(ge=0, description="give a number from 0 upwards")]
Seconds = Annotated[float, Meta(gt=0, description="give seconds")]
Marks = Annotated[dict[str, int], Meta(description="give `next` of the answer before")]


class ComponentArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`component`: like `Worker`, `agg/Worker` or `Worker.0`. `graph`: where several graphs have the component."""

    component: str = ""
    graph: str = ""


class ChangeArguments(ComponentArguments, frozen=True, kw_only=True):
    """`timeout`: seconds that open streams get to finish."""

    timeout: Seconds = FINISH


class RestartArguments(ChangeArguments, frozen=True, kw_only=True):
    """`drain`: open streams finish first."""

    drain: bool = True


class ScaleArguments(ChangeArguments, frozen=True, kw_only=True):
    """`replicas`: how many processes. `force`: also when a model loses its last worker."""

    replicas: Whole
    force: bool = False


class DrainArguments(ChangeArguments, frozen=True, kw_only=True):
    """`force`: also when a model loses its last worker."""

    force: bool = False


class StopArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`graph`: its name; without one the daemon ends. `timeout`: seconds that open answers get to finish."""

    graph: str = ""
    timeout: Seconds | None = None


class ServeArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`graph`: as `graph.graph.Graph.to_dict` makes it. `name`: of the running graph; empty: after its target."""

    graph: Any = None
    name: str = ""


class ReloadArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`graph`: a name; without one the daemon reads its own file again. `new`: what the graph becomes.

    `dry_run`: only say what differs. `timeout`: seconds that open streams get to finish.
    """

    graph: str = ""
    new: Any = None
    dry_run: bool = False
    timeout: Seconds = FINISH


class LogsArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`component`: empty for all. `lines`: how many of the last. `after`: lines after this mark instead."""

    component: str = ""
    lines: Whole = 100
    after: Marks | None = None


class InspectArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`actor`: part of an actor's path; empty for all."""

    actor: str = ""


class ExplainArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`request`: the id of a request."""

    request: str
