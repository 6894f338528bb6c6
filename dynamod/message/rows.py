"""What the daemon says of a component of a process: a row of `dynamo ps`, of many answers of the control socket.

Answers are JSON objects. Each field has a default, so that the answer of an older daemon can be read.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

STATE_SAYS_IT = ("", "idle", "works")
"""Words of `Row.doing` that say no more than the state does."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does. `doing`: in words. `slow`: whether that takes far longer than usual.

    `progress_age`: seconds since its last progress. `running`, `waiting`: requests in its engine. `phases`: of its
    start, with seconds.
    """

    doing: str = ""
    slow: Annotated[bool, Meta(description="1: the current step takes far longer than usual.")] = False
    progress_age: Annotated[
        float | None, Meta(description="Time since the last progress.", extra={"unit": "seconds"})
    ] = None
    running: Annotated[int, Meta(description="Requests that the engine of the process computes.")] = 0
    waiting: Annotated[int, Meta(description="Requests that wait in the engine of the process.")] = 0
    phases: dict[str, float] = {}


class Row(Activity, frozen=True):
    """One component of one process, as `ps` shows it. Times in seconds.

    `session`: the command that it ends with. `detail`: what it does while it starts, or changes its role. `role`: the
    disaggregation mode of a worker, the next one while the role changes; empty until it is known. `models`: models that
    clients can ask for at this ingress process, or through this worker (daemon.served). The activity is its process's.
    """

    graph: str = ""
    component: str = ""
    process: str = ""
    replica: int = 0
    state: str = ""
    pid: int = 0
    restarts: int = 0
    uptime: float | None = None
    last_error: str = ""
    gpus: list[str] = msgspec.field(default_factory=list[str])
    session: str = ""
    detail: str = ""
    role: str = ""
    models: list[str] = msgspec.field(default_factory=list[str])
