"""Rows of `ps`: what the daemon knows of the components of a graph."""

import msgspec

from dynamod.actor.statistics import ChildStatistics
from dynamod.message.rows import Activity, Row

from .process import ProcessFacts, ProcessRecord
from .running import Running


def of_process(row: Row, facts: ProcessFacts) -> Row:
    """The row with what the daemon knows of the component's process."""
    return msgspec.structs.replace(row, **{name: getattr(facts, name) for name in Activity.__struct_fields__})


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
    return of_process(row, facts) if facts is not None else row
