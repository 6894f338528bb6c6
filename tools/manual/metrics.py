"""The page about metrics: names with type, labels, unit and help, from the structs and tables that define them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec

from dynamod.actor.statistics import ActorStatistics, ChildStatistics, SystemStatistics
from dynamod.daemon.process import ProcessFacts
from dynamod.discovery.memory import RegistryStatistics
from dynamod.discovery.records import RecordStatistics
from dynamod.engine.batching.engine import BatchingStatistics
from dynamod.engine.llamacpp.statistics import LlamaCppStatistics
from dynamod.features.audit import ingress as audit
from dynamod.features.batches import runner as batches
from dynamod.features.exporter import names as exporter
from dynamod.features.on_demand.keeper import OnDemandStatistics
from dynamod.features.planner.metrics import Decision, PlannerFacts
from dynamod.features.prefill.dispatch import LocalPrefill, RemotePrefill
from dynamod.features.prefill.handoff import HandoffStatistics
from dynamod.features.request_trace import ingress as request_trace
from dynamod.features.responses import store as responses
from dynamod.features.tags import ingress as tags
from dynamod.features.tiers.dispatch import PeerFetches
from dynamod.features.tracing import ingress as tracing
from dynamod.http import keys
from dynamod.http import metrics as http
from dynamod.ingress import router_metrics as router
from dynamod.ingress.messages import ProcessorStatistics
from dynamod.message.kv_events import ForwardPass
from dynamod.observe.logstore import LogStatistics
from dynamod.observe.metrics import Buckets, Definition, help_of, is_counter, marks, snake
from dynamod.runtime.statistics import Answers, DeadLetters, MessageStatistics, WorkerInfo
from dynamod.transport.inbox import InboxStatistics
from dynamod.transport.nats.connection import NatsStatistics
from dynamod.transport.nats.link import LinkStatistics
from dynamod.transport.outbox import OutboxStatistics
from dynamod.transport.signing import SigningStatistics
from dynamod.worker.statistics import WorkerStatistics

from .text import code, page, table

FRONTEND = "dynamo_frontend"
INTRO = """\
Metrics have the text format of Prometheus. [Monitoring](../how-to/monitoring.md) shows how to collect them.

| where | what |
|---|---|
| `GET /metrics` of a frontend | the frontend process alone |
| `GET /v1/metrics` of the control socket | all processes of the node |
| `GET /metrics` at `DYN_SYSTEM_PORT` of the daemon | the same, and [other names](#other-names) of some metrics |

Names that begin with `dynamod_` are names of dynamod. All other names are those of NVIDIA Dynamo, where NVIDIA Dynamo
has the metric. `DYN_METRICS_PREFIX` sets another prefix than `dynamo_frontend`.

Samples have the label `process`, which the tables leave out. What the HTTP server of a frontend counts (requests, keys,
tags, batches) has the label at the control socket alone. A metric without a sample is absent, or has a head alone. A
histogram `NAME` has the samples `NAME_bucket`, `NAME_sum` and `NAME_count`. Only pools of prefill workers have the
label `pool`."""

DIFFERENCES = """\
## Differences from NVIDIA Dynamo

NVIDIA Dynamo does not have these names: `dynamo_frontend_model_remote_prefill_*`,
`dynamo_frontend_model_local_prefill_total`, `dynamo_frontend_model_peer_fetch_*`,
`dynamo_frontend_unknown_fields_total`, `dynamo_frontend_unsupported_fields_total`, and the names of client keys, tags,
batches, the audit log and the request trace.

dynamod does not have these names of NVIDIA Dynamo: `detokenize_*`, `worker_last_*`, `tokenizer_cache_*`,
`model_max_num_seqs`, `model_max_num_batched_tokens`, `failures_total` (use `error_type`),
`dynamo_router_overhead_indexer_find_matches_ms`, `_seq_hashing_ms`, `_total_ms`, `dynamo_component_router_*`."""


OTHER_NAMES = """\
## Other names

The port of the daemon (`DYN_SYSTEM_PORT`) has these names too, so that dashboards of NVIDIA Dynamo and vLLM find them.
`dynamo_component_*` have the labels `model`, `dynamo_component` (`backend` or `prefill`) and `dynamo_endpoint`;
`vllm:*` have the labels `model_name` and `engine`."""


class Shown(NamedTuple):
    """A metric as the page shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    unit: str
    help: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The numbers of a struct, with the prefix of their names and their labels."""

    prefix: str
    struct: type[msgspec.Struct]
    labels: tuple[str, ...] = ()

    def shown(self) -> Iterator[Shown]:
        """One metric per number."""
        yield from _of_struct(self.prefix, self.struct, self.labels)


@dataclass(frozen=True, slots=True)
class Defined:
    """Metrics of a table of definitions."""

    definitions: tuple[Definition, ...]

    def shown(self) -> Iterator[Shown]:
        """One metric per definition."""
        for one in self.definitions:
            name = f"{FRONTEND}_{one.name}{'_total' if one.kind == 'counter' else ''}"
            yield Shown(name, one.kind, one.labels, _unit(name), one.help)


MODEL = ("model",)
ACTOR = ("actor",)
POOL = ("model", "pool")
WORKER = "dynamod_worker"
SECTIONS: tuple[tuple[str, str, Sequence[Rows | Defined]], ...] = (
    (
        "Frontend",
        "Requests of clients. `endpoint` is the API, `request_type` is `stream` or `unary`, `status` is `success` or "
        "`error`. `error_type` is empty, `validation`, `not_found`, `overload`, `response_timeout`, `cancelled` or "
        "`internal`. [API keys](../how-to/api-keys.md) give the metrics of client keys; `limit` names the limit that "
        "refused a request. `type` is `prompt` or `completion`.",
        (
            Defined(tuple(definition for _, definition in http.OF_MODELS)),
            Defined((http.GONE, http.UNKNOWN_FIELDS, http.UNSUPPORTED_FIELDS)),
            Rows(FRONTEND, router.LoopStatistics),
            Defined(keys.METRICS),
            Defined((audit.METRIC, request_trace.ROWS, request_trace.TOOLS, tracing.TRACES)),
            Defined((tags.METRIC,)),
            Defined((batches.LINES, batches.OPEN, batches.BYTES)),
            Defined((batches.KEY_FILES, batches.KEY_BYTES, batches.KEY_BATCHES)),
            Defined((responses.KEY_RESPONSES, responses.KEY_BYTES)),
        ),
    ),
    (
        "Router and processor",
        "The preparation of requests and the choice of a worker, in the process of the frontend. `stage` is "
        "`preprocess` (checks, template, tokenizer) or `route` (until a worker is found). `migration_type` is "
        "`new_request` or `ongoing_request`, `outcome` is `success` or `failure`. `worker` is the process of the "
        "worker. The hit rate of a router is the quotient of overlap blocks and prompt blocks.",
        (
            Rows("dynamod_processor", ProcessorStatistics, ACTOR),
            Rows("dynamod_on_demand", OnDemandStatistics, ACTOR),
            Rows("dynamod_router", router.RouterCounts, POOL),
            Rows(f"{FRONTEND}_worker", router.WorkerLoad, (*POOL, "worker")),
            Rows(f"{FRONTEND}_router_queue", router.QueueLength, POOL),
            Rows(FRONTEND, router.HitRate, POOL),
            Rows(FRONTEND, router.StageRequests, (*MODEL, "stage", "phase")),
            Rows(FRONTEND, router.StageTimes, (*MODEL, "stage")),
            Rows(FRONTEND, router.PromptTimes, MODEL),
            Rows(FRONTEND, router.TokenizerLatency, (*MODEL, "operation")),
            Rows(f"{FRONTEND}_model", router.ModelFacts, MODEL),
            Rows(f"{FRONTEND}_model", router.Migrated, (*MODEL, "migration_type")),
            Rows(f"{FRONTEND}_model", router.TooLong, MODEL),
            Rows(f"{FRONTEND}_model", router.MigrationTimes, (*MODEL, "outcome")),
            Rows(f"{FRONTEND}_model", router.MigrationLimit, MODEL),
            Rows(f"{FRONTEND}_model", RemotePrefill, MODEL),
            Rows(f"{FRONTEND}_model", LocalPrefill, (*MODEL, "reason")),
            Rows(f"{FRONTEND}_model", PeerFetches, MODEL),
            Rows("dynamo_router_overhead", router.Overhead, MODEL),
        ),
    ),
    (
        "Worker",
        "The worker, its engine, its hand-offs with other workers, and the current step of each rank. Engines without "
        "a KV cache that dynamod knows have no metrics of blocks. `exported_blocks`, `imported_blocks`, "
        "`refused_blocks` and `computed_total` are of llama.cpp.",
        (
            Rows(WORKER, WorkerInfo, (*ACTOR, "model", "pool")),
            Rows(WORKER, WorkerStatistics, ACTOR),
            Rows(f"{WORKER}_engine", BatchingStatistics, ACTOR),
            Rows(f"{WORKER}_engine", LlamaCppStatistics, ACTOR),
            Rows(f"{WORKER}_handoff", HandoffStatistics, ACTOR),
            Rows(f"{WORKER}_step", ForwardPass, (*ACTOR, "dp_rank")),
        ),
    ),
    (
        "Planner",
        "Each pool at the last tick of its [planner](../how-to/autoscaling.md), in the process of the planner.",
        (
            Rows("dynamo_planner", PlannerFacts, ("component",)),
            Rows("dynamo_planner", Decision, ("component", "reason")),
        ),
    ),
    (
        "Transport",
        "Connections between processes. `peer` names the other process, `connection` numbers the connections of a "
        "server. Links are connections over NATS: a link has the label `peer` at the process that opened the link, "
        "else the label `connection`.",
        (
            Rows("dynamod_inbox", InboxStatistics, ("peer",)),
            Rows("dynamod_outbox", OutboxStatistics, ("connection",)),
            Rows("dynamod_signing", SigningStatistics),
            Rows("dynamod_link", LinkStatistics, ("peer", "connection")),
            Rows("dynamod_nats", NatsStatistics),
        ),
    ),
    (
        "Every process",
        "The actor system of each process, the daemon included. `message` is the type of a message.",
        (
            Rows("dynamod_system", SystemStatistics),
            Rows("dynamod_actor", ActorStatistics, ("actor", "kind")),
            Rows("dynamod_child", ChildStatistics, ("supervisor", "child")),
            Rows("dynamod", DeadLetters, ("message",)),
            Rows("dynamod_records", RecordStatistics),
            Rows("dynamod_messages", MessageStatistics),
        ),
    ),
    (
        "Daemon",
        "Processes, leases and keys of the node, on the control socket alone. `process` is the process that the sample "
        "describes.",
        (
            Rows("dynamod_process", ProcessFacts),
            Rows("dynamod_process", Answers),
            Rows("dynamod_registry", RegistryStatistics),
            Rows("dynamod_logs", LogStatistics),
        ),
    ),
)
"""Heading, introduction and metrics of each section. `BatchingStatistics` have the fields of `EngineStatistics` too."""

UNITS = ("seconds", "milliseconds", "ms", "bytes", "tokens", "blocks")
"""Last words of names that are units."""


def metrics() -> str:
    """The page."""
    parts = [
        f"## {title}\n\n{text}\n\n{table(_HEAD, map(_cells, unique(shown(rows))))}" for title, text, rows in SECTIONS
    ]
    return page("Metrics", INTRO, *parts, _other_names(), DIFFERENCES)


def _other_names() -> str:
    rows = ((code(name), one.metric.kind, code(one.source), one.metric.help) for name, one in aliases())
    return f"{OTHER_NAMES}\n\n{table(('name', 'type', 'made of', 'meaning'), rows)}"


def aliases() -> Iterator[tuple[str, exporter.Alias]]:
    """Each other name of a metric."""
    for one in exporter.aliases(FRONTEND):
        yield exporter.name_of(one) + ("_total" if one.metric.kind == "counter" else ""), one


_HEAD = ("name", "type", "labels", "unit", "meaning")


def shown(rows: Iterable[Rows | Defined]) -> list[Shown]:
    """Each metric of a section."""
    return [one for row in rows for one in row.shown()]


def unique(found: Iterable[Shown]) -> Iterable[Shown]:
    """Each metric once: a struct may inherit from another struct of the section."""
    return dict.fromkeys(found)


def _cells(one: Shown) -> tuple[str, ...]:
    return code(one.name), one.kind, ", ".join(map(code, one.labels)), one.unit, one.help


def _of_struct(prefix: str, struct: type[msgspec.Struct], labels: tuple[str, ...]) -> Iterator[Shown]:
    for field in msgspec.structs.fields(struct):
        if field.name in labels:
            continue
        name, types = f"{prefix}_{snake(field.name)}", [*kinds(field.type)]
        for within in types:
            if isinstance(within, type) and issubclass(within, msgspec.Struct) and within is not Buckets:
                yield from _of_struct(name, within, labels)
        if Buckets in types or not {int, float, bool}.isdisjoint(types):
            counts = is_counter(field)
            kind = "histogram" if Buckets in types else "counter" if counts else "gauge"
            name += "_total" if counts and not name.endswith("_total") else ""
            given = next((str(mark.extra["unit"]) for mark in marks(field) if mark.extra and "unit" in mark.extra), "")
            yield Shown(name, kind, labels, given or _unit(name), help_of(struct, field.name))


def kinds(annotation: Any) -> Iterator[Any]:
    """The types of a field, without notes; `None` of a union is one."""
    if get_origin(annotation) is Annotated:
        yield from kinds(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from kinds(one)
    else:
        yield annotation


def _unit(name: str) -> str:
    last = name.removesuffix("_total").rpartition("_")[2]
    if "_var_" in name:  # a variance has the square of a unit
        return ""
    return {"ms": "milliseconds"}.get(last, last) if last in UNITS else ""
