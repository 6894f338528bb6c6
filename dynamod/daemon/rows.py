"""What `ps` shows of a graph."""

import msgspec

from dynamod.actor.supervisor import ChildStatistics

from .process import Activity, ProcessFacts, ProcessRecord
from .running import Running


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


def process_row(
    component: str,
    running: Running,
    index: int,
    child: ChildStatistics | None,
    record: ProcessRecord | None,
) -> Row:
    """The row of a component of a replica, or of a process that is about to take its place or to leave."""
    facts = record.facts() if record is not None else None
    state = child.state if child is not None else "Draining" if facts is not None else "Stopped"
    if facts is not None and state in ("Starting", "Ready", "Draining"):
        state = facts.components.get(component, state)
        state = "Silent" if facts.silent else state
    trouble = child.last_error.removeprefix("ProcessEnded: ") if child is not None else ""
    roles = (facts.roles if facts is not None else {}) or running.roles.get(index, {})
    row = Row(
        graph=running.runner.name,
        component=component,
        process=running.full_name(index),
        replica=index,
        state=state,
        pid=facts.pid if facts is not None else 0,
        restarts=child.restarts if child is not None else 0,
        uptime=facts.uptime if facts is not None else None,
        last_error=(facts.silent if facts is not None else "") or trouble,
        gpus=list(running.replicas[index]),
        session=running.runner.session,
        detail=facts.detail if facts is not None and state in ("Starting", "Ready") else "",
        role=roles.get(component, ""),
    )
    return row.of_process(facts) if facts is not None else row
