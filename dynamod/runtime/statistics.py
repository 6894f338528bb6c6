"""The counts of a process, made on demand: metric families for scrapes, plain numbers for `dynamo top`.

Names begin with `dynamod_` (or are NVIDIA Dynamo's), every sample has the label `process`:
`dynamod_actor_mailbox_depth`, `dynamod_processor_flights`, `dynamod_inbox_frames_total`, ...
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.actor import ActorError, Ref, System, Total
from dynamod.actor.inspect import reports
from dynamod.discovery import records
from dynamod.http.metrics import HttpStatistics
from dynamod.http.metrics import families as http_families
from dynamod.http.metrics import statistics as http_statistics
from dynamod.message import newer
from dynamod.message.bounded import Bounded
from dynamod.message.waits import Waits
from dynamod.observe.bounded import holdings
from dynamod.observe.metrics import Row, exposition, families, labelled, load, snake

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .context import ProcessContext

log = logging.getLogger("dynamod.host")

PREFIX = "dynamod_"


class DeadLetters(msgspec.Struct, frozen=True):
    """Messages without a reader."""

    dead_letters_total: Annotated[int, Meta(description="Messages that no actor read.")]


class MessageStatistics(msgspec.Struct, frozen=True):
    """Messages, and parts of messages, of kinds that only a newer release knows; they were skipped."""

    unknown: Annotated[
        Total, Meta(description="Messages, and parts of messages, of kinds that only a newer release knows.")
    ]


class Answers(msgspec.Struct, frozen=True):
    """Whether the process has answered the daemon just now."""

    answers: Annotated[bool, Meta(description="1: the process has answered the daemon just now.")]


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker is, in labels."""

    info: Annotated[bool, Meta(description="Always 1: the model and the pool of a worker are its labels.")]


class PoolFacts(msgspec.Struct, frozen=True):
    """Of a worker of a pool: which one, and how many prompts wait in its sessions for their readers."""

    pool: str
    sessions: int | None = None


class ProcessStatistics(msgspec.Struct, frozen=True):
    """What `dynamo top` and `status` show of a process.

    `mailboxes`: messages that wait, by actor. `engines`: by worker's actor. `unloaded`: why models are not served, by
    name. `loading`: models that are being loaded. `pools`: by worker's actor, without aggregated workers. `waits`:
    requests of a frontend without a token.
    """

    mailboxes: dict[str, int]
    engines: dict[str, dict[str, float | None]]
    http: HttpStatistics | None
    unloaded: dict[str, str] = {}
    loading: tuple[str, ...] = ()
    pools: dict[str, PoolFacts] = {}
    waits: tuple[Waits, ...] = ()


async def report(process_context: "ProcessContext", question: str) -> str | ProcessStatistics | list[Bounded]:
    """The reply to the daemon's question.

    `metrics`, `openmetrics`: all families as text. `statistics`: plain numbers. `bounded`: what bounded structures
    hold.
    """
    if question == "statistics":
        return process_statistics(process_context)
    if question == "bounded":
        return bounded_structures(process_context.system)
    await load()
    servers = chain.from_iterable(map(http_families, process_context.http))
    own = labelled(servers, "process", process_context.plan.name)
    found = chain(await process_families(process_context), own)
    return exposition(found, openmetrics=question == "openmetrics")


def process_statistics(process_context: "ProcessContext") -> ProcessStatistics:
    """Numbers of a component process as they are now."""
    found = list(reports(process_context.system))
    engines = {report.kernel.path.lstrip("/"): getattr(report.own, "engine", None) for report in found}
    return ProcessStatistics(
        mailboxes={report.kernel.path.lstrip("/"): report.kernel.mailbox.depth for report in found},
        engines={path: _numbers(one) for path, one in engines.items() if isinstance(one, msgspec.Struct)},
        http=http_statistics(process_context.http) if process_context.http else None,
        unloaded={name: why for one in found for name, why in getattr(one.own, "unloaded", {}).items()},
        loading=tuple(name for one in found for name in getattr(one.own, "loading", ())),
        pools={one.kernel.path.lstrip("/"): _pool(one.own) for one in found if getattr(one.own, "pool", "")},
        waits=tuple(wait for one in found for wait in getattr(one.own, "waits", ())),
    )


def bounded_structures(system: System) -> list[Bounded]:
    """What the bounded structures of this process hold, mailboxes included."""
    boxes = [(report.kernel.path or "/", report.kernel.mailbox) for report in reports(system)]
    return [*holdings(), *(Bounded("mailbox", path, box.depth, box.capacity, "messages") for path, box in boxes)]


def _numbers(struct: msgspec.Struct) -> dict[str, float | None]:
    """A struct's numbers; those of nested structs under joined names, as metrics have them."""
    found: dict[str, float | None] = {}
    for name, value in msgspec.structs.asdict(struct).items():
        if isinstance(value, msgspec.Struct):
            found.update((f"{name}_{key}", number) for key, number in _numbers(value).items())
        else:
            found[name] = value
    return found


def _pool(worker: Any) -> PoolFacts:
    sessions = getattr(worker.handoff, "sessions", None)
    return PoolFacts(worker.pool, sessions.open if sessions is not None else None)


async def process_families(process_context: "ProcessContext") -> "list[Metric]":
    """What the actors and connections of a component process count, and its routers, without its HTTP servers."""
    routers = await _router_rows(process_context.processor) if process_context.processor is not None else ()
    own = chain.from_iterable(rows() for rows in process_context.rows)
    rows = chain(system_rows(process_context.system), routers, own, _connection_rows(process_context))
    return families_of(process_context.plan.name, rows)


def families_of(process: str, rows: Iterable[Row]) -> "list[Metric]":
    """Families of rows, each sample with the name of the process."""
    return families((prefix, {"process": process, **labels}, struct) for prefix, labels, struct in rows)


def system_rows(system: System) -> Iterator[Row]:
    """The actors of a process: what the kernel counts for each, and what it counts itself in `statistics()`."""
    whole = system.statistics()
    yield f"{PREFIX}system", {}, whole
    yield f"{PREFIX}records", {}, records.statistics()
    yield f"{PREFIX}messages", {}, MessageStatistics(newer.skipped())
    for kind, count in whole.dead_letters.items():
        yield PREFIX.rstrip("_"), {"message": kind}, DeadLetters(count)
    for report in reports(system):
        path = report.kernel.path or "/"
        yield f"{PREFIX}actor", {"actor": path, "kind": report.kernel.kind}, report.kernel
        if report.own is not None:
            yield _prefix(report.own), {"actor": path}, report.own
            if model := getattr(report.own, "model", ""):
                labels = {"actor": path, "model": model, "pool": getattr(report.own, "pool", "")}
                yield _prefix(report.own), labels, WorkerInfo(True)
            for step in getattr(report.own, "steps", ()):
                yield f"{_prefix(report.own)}_step", {"actor": path, "dp_rank": str(step.dp_rank)}, step
        for child in report.children:
            yield f"{PREFIX}child", {"supervisor": path, "child": child.name}, child


async def _router_rows(processor: Ref) -> Iterable[Row]:
    from dynamod.http.settings import metrics_prefix
    from dynamod.ingress.dispatcher import RouterRows

    try:
        rows: list[Row] = await processor.ask(RouterRows(metrics_prefix()), timeout=5.0)
    except ActorError as error:  # the rest of a scrape does not depend on it
        log.warning("no metrics of the routers: %s", error)
        return ()
    return rows


def _connection_rows(process_context: "ProcessContext") -> Iterator[Row]:
    for path, inbox in process_context.transport.unix.statistics().items():
        yield f"{PREFIX}inbox", {"peer": Path(path).stem}, inbox
    for number, outbox in enumerate(process_context.server.statistics()):
        yield f"{PREFIX}outbox", {"connection": str(number)}, outbox
    transport = process_context.transport
    if transport.signing.signer is not None:
        yield f"{PREFIX}signing", {}, transport.signing.signer.statistics()
    if transport.tcp is not None:
        for peer, inbox in transport.tcp.inboxes().items():
            yield f"{PREFIX}inbox", {"peer": peer}, inbox
        for number, outbox in enumerate(transport.tcp.outboxes()):
            yield f"{PREFIX}outbox", {"connection": f"tcp.{number}"}, outbox
    if transport.connection is not None:
        yield f"{PREFIX}nats", {}, transport.connection.statistics()
    if transport.nats is not None:
        for subject, inbox in transport.nats.statistics().items():
            yield f"{PREFIX}inbox", {"peer": subject}, inbox
        for link in transport.nats.links():
            yield f"{PREFIX}link", {"peer": link.peer}, link
    for subject, server in transport.servers.items():
        for number, outbox in enumerate(server.statistics()):
            yield f"{PREFIX}outbox", {"connection": f"{subject}.{number}"}, outbox
        for number, link in enumerate(server.links()):
            yield f"{PREFIX}link", {"connection": f"{subject}.{number}"}, link


def _prefix(struct: msgspec.Struct) -> str:
    """`dynamod_processor` for ProcessorStatistics."""
    return PREFIX + snake(type(struct).__name__.removesuffix("Statistics"))
