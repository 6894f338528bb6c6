"""What `ps` shows of a graph."""

import msgspec

from .process import Activity, ProcessFacts


class Row(Activity, frozen=True):
    """One component of one process, as `ps` shows it. Times in seconds.

    `session`: the command that it ends with. `detail`: what it does while it starts, or changes its role. `role`: the
    disaggregation mode of a worker, the next one while the role changes; empty until it is known. `models`: models that
    clients can ask for at this ingress process, or through this worker (daemon.served). The activity is its process's.
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
    gpus: list[str] = msgspec.field(default_factory=list[str])
    session: str = ""
    detail: str = ""
    role: str = ""
    models: list[str] = msgspec.field(default_factory=list[str])

    def of_process(self, facts: ProcessFacts) -> "Row":
        """With what the daemon knows of the component's process."""
        return msgspec.structs.replace(self, **{name: getattr(facts, name) for name in Activity.__struct_fields__})


def down(graph: str, component: str, why: str) -> Row:
    """The row of a component whose graph could not start."""
    return Row(graph, component, f"{graph}/{component}.0", 0, "Fatal", 0, last_error=why)
