"""The statistics of a process's actors, supervisors and mail as Prometheus text, made when somebody asks.

Names begin with `dynamod_` (or are the original's), every sample has the label `process`:
`dynamod_actor_mailbox_depth`, `dynamod_processor_flights`, `dynamod_inbox_frames_total`, ...
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dynamod.actor import Supervisor, System
from dynamod.observe.metrics import labelled, merge, render

if TYPE_CHECKING:
    from .context import ProcessContext

PREFIX = "dynamod_"
Row = tuple[str, dict[str, str], msgspec.Struct]
"""Prefix, labels, numbers."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class DeadLetters(msgspec.Struct, frozen=True):
    """Messages that nobody read."""

    dead_letters_total: int


class Answers(msgspec.Struct, frozen=True):
    """Whether the process has answered the daemon just now."""

    answers: bool


def text(process: str, rows: Iterator[Row]) -> str:
    """Rows of one process as text."""
    by_prefix: dict[str, list[tuple[dict[str, str], msgspec.Struct]]] = defaultdict(list)
    for prefix, labels, struct in rows:
        by_prefix[prefix].append(({"process": process, **labels}, struct))
    return "".join(render(prefix, found) for prefix, found in by_prefix.items())


def process_text(process_context: "ProcessContext") -> str:
    """What the actors and the mail of a component process count; a front door shows it beside its own counters."""
    return text(process_context.plan.name, _process_rows(process_context))


def whole_text(process_context: "ProcessContext") -> str:
    """Everything of a component process, with what its front door counts (`exposition()`), for the control socket."""
    texts = [process_text(process_context)]
    for ref in process_context.components.values():
        cell = process_context.system.cell(ref)
        exposition = getattr(cell.actor, "exposition", None) if cell is not None else None
        if exposition is not None:
            texts.append(labelled(exposition(), "process", process_context.plan.name))
    return merge(texts)


def _process_rows(process_context: "ProcessContext") -> Iterator[Row]:
    yield from system_rows(process_context.system)
    for path, inbox in process_context.unix.statistics().items():
        yield f"{PREFIX}inbox", {"peer": Path(path).stem}, inbox
    for number, outbox in enumerate(process_context.server.statistics()):
        yield f"{PREFIX}outbox", {"connection": str(number)}, outbox
    remote = process_context.remote
    if remote.connection is not None:
        yield f"{PREFIX}nats", {}, remote.connection.statistics()
    if remote.transport is not None:
        for subject, inbox in remote.transport.statistics().items():
            yield f"{PREFIX}inbox", {"peer": subject}, inbox
        for link in remote.transport.links():
            yield f"{PREFIX}link", {"peer": link.peer}, link
    for subject, server in remote.workers.items():
        for number, outbox in enumerate(server.statistics()):
            yield f"{PREFIX}outbox", {"connection": f"{subject}.{number}"}, outbox
        for number, link in enumerate(server.links()):
            yield f"{PREFIX}link", {"connection": f"{subject}.{number}"}, link


def system_rows(system: System) -> Iterator[Row]:
    """The actors of a process: what the kernel counts for each, and what it counts itself.

    That is a struct (`statistics()`), and rows with names and labels of their own (`metric_rows()`).
    """
    whole = system.statistics()
    yield f"{PREFIX}system", {}, whole
    for kind, count in whole.dead_letters.items():
        yield PREFIX.rstrip("_"), {"message": kind}, DeadLetters(count)
    for cell in system.cells():
        labels = {"actor": cell.ref.path or "/"}
        yield f"{PREFIX}actor", {**labels, "kind": type(cell.actor).__name__}, cell.statistics()
        statistics = getattr(cell.actor, "statistics", None)
        own = statistics() if statistics is not None else None
        if isinstance(own, msgspec.Struct):
            yield _prefix(own), labels, own
        rows = getattr(cell.actor, "metric_rows", None)
        if rows is not None and cell.state in ("Ready", "Draining"):
            yield from rows()
        if isinstance(cell.actor, Supervisor):
            for child in cell.actor.children():
                yield f"{PREFIX}child", {"supervisor": cell.ref.path or "/", "child": child.name}, child


def _prefix(struct: msgspec.Struct) -> str:
    """`dynamod_processor` for ProcessorStatistics."""
    return PREFIX + _CAMEL.sub("_", type(struct).__name__.removesuffix("Statistics")).lower()
