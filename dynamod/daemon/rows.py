"""What `ps` shows of a graph."""

import msgspec

from .process import ProcessFacts


class Row(msgspec.Struct, frozen=True):
    """One component of one process, as `ps` shows it. Times in seconds.

    `session`: the command that it ends with. `detail`: what it does while it starts, or changes its role. `role`: of a
    worker, its disaggregation mode, or that which it is about to have; empty until it is known. `models`: models
    that can be asked at this ingress process, or through this worker (daemon.served).

    Of its process: `doing`: what it does, in words. `slow`: that takes far longer than usual. `progress_age`: seconds
    since its last progress. `running`, `waiting`: requests in its engine. `phases`: of its start, with seconds.
    """

    graph: str
    component: str
    process: str
    replica: int
    state: str
    pid: int
    restarts: int = 0
    uptime: float | None = None
    last_error: str = ""
    gpus: list[str] = []
    session: str = ""
    detail: str = ""
    role: str = ""
    doing: str = ""
    slow: bool = False
    progress_age: float | None = None
    running: int = 0
    waiting: int = 0
    phases: dict[str, float] = {}
    models: list[str] = []

    def of_process(self, facts: ProcessFacts) -> "Row":
        """With what the daemon knows of the component's process."""
        names = ("doing", "slow", "progress_age", "running", "waiting", "phases")
        return msgspec.structs.replace(self, **{name: getattr(facts, name) for name in names})


def down(graph: str, component: str, why: str) -> Row:
    """The row of a component whose graph could not start."""
    return Row(graph, component, f"{graph}/{component}.0", 0, "Fatal", 0, last_error=why)
