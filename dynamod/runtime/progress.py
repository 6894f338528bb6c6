"""What each worker does, for `/health/progress`: operators and probes tell a slow worker from a stuck one by it."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dynamod.discovery.view import View
from dynamod.message.discovery import Instance
from dynamod.message.errors import DynamodError

from .context import ProcessContext

DEADLINE_S = 1.0
"""Seconds to wait for the rows of the node's daemon."""


class WorkerProgress(msgspec.Struct, frozen=True):
    """A worker process. `state`: starting, ready, slow, stuck, draining, restarting, stopped or fatal.

    `doing`: what it does, in words. `progress_age_s`: seconds since its last progress; None: not known, as of workers
    of other nodes. `running`, `waiting`: requests in its engine. `phases`: of its start, with seconds.
    """

    process: str
    component: str
    node: str
    state: str
    doing: str = ""
    progress_age_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    phases: dict[str, float] = {}


def of_rows(rows: Iterable[Mapping[str, Any]], node: str, own: int) -> list[WorkerProgress]:
    """Workers of this node. `rows`: those of `dynamo ps`; `own`: the process id of this ingress, which is none."""
    return [
        WorkerProgress(
            row["process"],
            row["component"],
            node,
            "stuck" if row["state"] == "Silent" else "slow" if row["slow"] else row["state"].lower(),
            row["doing"] or row["last_error"],
            row["progress_age"],
            row["running"],
            row["waiting"],
            row["phases"],
        )
        for row in rows
        if row["pid"] != own
    ]


def of_view(view: View, node: str) -> list[WorkerProgress]:
    """Workers of other nodes, as their daemons have published them."""
    found: dict[tuple[str, str], Instance] = {}
    for one in view.all_instances():
        if one.node != node:
            found.setdefault((one.node, one.process or f"{one.instance_id:x}"), one)
    return [
        WorkerProgress(
            process,
            one.component,
            where,
            "stuck" if view.quarantined(one) else "slow" if one.instance_id in view.slow else one.state,
            view.slow.get(one.instance_id, ""),
        )
        for (where, process), one in found.items()
    ]


async def progress(context: ProcessContext) -> tuple[list[WorkerProgress], str]:
    """All workers that this process knows of, and why those of this node are missing; empty when they are not."""
    registry = context.registry
    others = of_view(context.view, registry.node)
    try:
        rows = await registry.ask("progress", timeout=DEADLINE_S)
    except (DynamodError, TimeoutError) as error:
        return others, f"the daemon of this node does not answer: {error or 'no answer within 1 s'}"
    return of_rows(rows, registry.node, os.getpid()) + others, ""
