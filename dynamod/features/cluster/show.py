"""How the cluster looks on a terminal."""

from collections.abc import Sequence

from dynamod.cli.tables import duration, table

from .commands import ANSWERS, NodeFacts, NodeRow

ALONE = "no other node is known: nodes find each other by etcd (ETCD_ENDPOINTS), see dynamo infra up"


def nodes(rows: list[NodeRow], width: int | None = None) -> str:
    """`dynamo nodes`: a line for each node, with the columns that fit `width`."""
    columns = {
        "NODE": [f"{row.node}*" if row.own else row.node for row in rows],
        "STATE": [row.state for row in rows],
        "VERSION": [row.version or "-" for row in rows],
        "PROTOCOL": [str(row.protocol or "-") for row in rows],
        "UPTIME": [duration(row.facts.uptime) if row.facts is not None else "-" for row in rows],
        "PROCESSES": [_ready(row.facts) for row in rows],
        "MODELS": [", ".join(row.facts.models) or "-" if row.facts is not None else "-" for row in rows],
        "PROGRESS": [_progress(row.facts) for row in rows],
        "CLOCK MS": [f"{row.clock_ms:+.1f}" if row.clock_ms is not None else "-" for row in rows],
        "ADDRESS": [row.address or "-" for row in rows],
    }
    text = ""
    for gone in ("", "ADDRESS", "UPTIME", "PROGRESS", "PROTOCOL", "MODELS"):
        columns.pop(gone, None)
        text = table(list(columns), list(zip(*columns.values(), strict=True)))
        if width is None or text.index("\n") <= width:
            break
    return "\n".join([text, *missing(rows), "* this node" if len(rows) > 1 else ALONE])


def missing(rows: Sequence[NodeRow]) -> list[str]:
    """A line for each node without an answer, which says why."""
    return [f"{row.node}: {row.why}" for row in rows if row.state != ANSWERS]


def _ready(facts: NodeFacts | None) -> str:
    return f"{facts.ready}/{facts.processes} ready" if facts is not None else "-"


def _progress(facts: NodeFacts | None) -> str:
    if facts is None:
        return "-"
    if not facts.running and not facts.waiting:
        return "idle"
    age = f", last {facts.progress_age:.1f} s ago" if facts.progress_age is not None else ""
    return f"{facts.running} running, {facts.waiting} waiting{age}"
