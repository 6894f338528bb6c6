"""What the health of a node is, for probes of the kubelet and for load balancers."""

from collections.abc import Iterable, Sequence
from typing import Any

from dynamod.message.rows import Row


def not_live(rows: Iterable[Row]) -> str:
    """Why the node should be started again; empty: it should not. One of several processes that failed does not count.

    The daemon starts processes again. A node is not live when all of its processes have failed for good or are silent.
    """
    every = list(rows)
    bad = [f"{row.process} is {row.state}" for row in every if row.state in ("Fatal", "Silent")]
    return "; ".join(bad) if bad and len(bad) == len(every) else ""


def not_ready(rows: Iterable[Row]) -> str:
    """Why the node should get no requests; empty: it is ready."""
    every = list(rows)
    if not every:
        return "no component runs"
    if any(row.state == "Ready" for row in every):
        waiting = {row.component for row in every} - {row.component for row in every if row.state == "Ready"}
        return f"{', '.join(sorted(waiting))}: not ready" if waiting else ""
    return "; ".join(f"{row.process} is {row.state}" for row in every)


def progress(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """State, work and age of the last progress of each process."""
    return [
        {
            "process": row.process,
            "state": row.state,
            "slow": row.slow,
            "doing": row.doing,
            "progress_age_s": row.progress_age,
            "running": row.running,
            "waiting": row.waiting,
        }
        for row in rows
    ]
