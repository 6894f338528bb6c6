"""Metrics of dynamod under the names that dashboards of NVIDIA Dynamo and vLLM ask for.

Sources of the names: `deploy/observability` of NVIDIA Dynamo 1.6 and `examples/observability` of vLLM 0.33. A name is
in the table only where the number means the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from dynamod.observe.metrics import Definition

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

Labels = Mapping[str, str]
Relabel = Callable[[Labels, Labels], dict[str, str] | None]
"""Makes the labels of an alias from those of a sample and from those of its worker; None: no alias."""

WORKER_INFO = "dynamod_worker_info"


def component(labels: Labels, worker: Labels) -> dict[str, str] | None:
    """Labels of `dynamo_component_*`: NVIDIA Dynamo's workers are the components `backend` and `prefill`."""
    kind = "prefill" if worker.get("pool") == "prefill" else "backend"
    named = {"model": worker.get("model", ""), "dynamo_component": kind, "dynamo_endpoint": "generate"}
    return {**named, "process": labels["process"]}


def engine(labels: Labels, worker: Labels) -> dict[str, str] | None:
    """Labels of `vllm:*` of a worker."""
    return {"model_name": worker.get("model", ""), "engine": "0", "process": labels["process"]}


def served(labels: Labels, _worker: Labels) -> dict[str, str] | None:
    """Labels of `vllm:*` of a model at a frontend."""
    return {"model_name": labels["model"], "engine": "0", "process": labels["process"]}


def succeeded(labels: Labels, worker: Labels) -> dict[str, str] | None:
    """As `served`, of requests that succeeded."""
    return served(labels, worker) if labels["status"] == "success" else None


class Alias(NamedTuple):
    """`source`: a family, as prometheus_client names it. `part`: of a histogram the sample that becomes a counter.

    `prefix`, `metric`: the other name. `share_of`: the family by whose sample of the same labels the value is divided.
    """

    source: str
    prefix: str
    metric: Definition
    relabel: Relabel
    part: str = ""
    share_of: str = ""


_KV_USAGE = "Share of the KV blocks that requests use, 0 to 1."
_WORKER = (
    ("accepted", Definition("counter", "requests", "Requests that the worker took.")),
    ("request_duration_seconds", Definition("histogram", "request_duration_seconds", "Time of a request at a worker.")),
    ("open", Definition("gauge", "inflight_requests", "Open requests of the worker.")),
    ("cancelled", Definition("counter", "cancellation", "Requests that were cancelled.")),
    ("engine_active_blocks", Definition("gauge", "kvstats_active_blocks", "KV blocks that requests use.")),
    ("engine_total_blocks", Definition("gauge", "kvstats_total_blocks", "KV blocks of the worker.")),
    ("engine_total_blocks", Definition("gauge", "total_blocks", "KV blocks of the worker.")),
    (
        "engine_hit_rate",
        Definition("gauge", "kvstats_gpu_prefix_cache_hit_rate", "Share of prompt tokens in the cache."),
    ),
)
_ENGINE = (
    ("engine_running", Definition("gauge", "num_requests_running", "Requests that the engine computes.")),
    ("engine_waiting", Definition("gauge", "num_requests_waiting", "Requests that wait in the engine.")),
    ("engine_tokens", Definition("counter", "generation_tokens", "Tokens of answers.")),
    ("engine_preemptions", Definition("counter", "num_preemptions", "Requests that gave way to other requests.")),
)
_SERVED = (
    ("time_to_first_token_seconds", Definition("histogram", "time_to_first_token_seconds", "Time to the first token.")),
    ("inter_token_latency_seconds", Definition("histogram", "inter_token_latency_seconds", "Time between tokens.")),
    ("request_duration_seconds", Definition("histogram", "e2e_request_latency_seconds", "Time of a request.")),
    ("input_sequence_tokens", Definition("histogram", "request_prompt_tokens", "Prompt tokens of a request.")),
    ("output_sequence_tokens", Definition("histogram", "request_generation_tokens", "Tokens of an answer.")),
)
_BLOCKS = {"source": "dynamod_worker_engine_active_blocks", "share_of": "dynamod_worker_engine_total_blocks"}


def aliases(frontend: str) -> tuple[Alias, ...]:
    """All aliases. `frontend`: the prefix of the frontend's metrics."""
    return (
        *(Alias(f"dynamod_worker_{source}", "dynamo_component", name, component) for source, name in _WORKER),
        *(
            Alias(prefix="dynamo_component", metric=Definition("gauge", name, _KV_USAGE), relabel=component, **_BLOCKS)
            for name in ("gpu_cache_usage_percent", "kvstats_gpu_cache_usage_percent")
        ),
        *(Alias(f"dynamod_worker_{source}", "vllm", name, engine) for source, name in _ENGINE),
        Alias(prefix="vllm", metric=Definition("gauge", "kv_cache_usage_perc", _KV_USAGE), relabel=engine, **_BLOCKS),
        *(Alias(f"{frontend}_{source}", "vllm", name, served) for source, name in _SERVED),
        Alias(
            f"{frontend}_input_sequence_tokens",
            "vllm",
            Definition("counter", "prompt_tokens", "Tokens of prompts."),
            served,
            "_sum",
        ),
        Alias(
            f"{frontend}_input_sequence_tokens",
            "vllm",
            Definition("counter", "prefix_cache_queries", "Tokens of prompts that were looked up in the cache."),
            served,
            "_sum",
        ),
        Alias(
            f"{frontend}_cached_tokens",
            "vllm",
            Definition("counter", "prefix_cache_hits", "Tokens of prompts that were in the cache."),
            served,
            "_sum",
        ),
        Alias(
            f"{frontend}_requests",
            "vllm",
            Definition("counter", "request_success", "Requests that succeeded."),
            succeeded,
        ),
    )


def name_of(alias: Alias) -> str:
    """The other name, without `_total`."""
    return f"{alias.prefix}{':' if alias.prefix == 'vllm' else '_'}{alias.metric.name}"


def with_aliases(found: "Iterable[Metric]", frontend: str) -> "Iterator[Metric]":
    """The families, and then the families of other names. `frontend`: the prefix of the frontend's metrics."""
    known = {family.name: family for family in found}
    yield from known.values()
    info = known.get(WORKER_INFO)
    workers = {(one.labels["process"], one.labels["actor"]): one.labels for one in (info.samples if info else ())}
    for alias in aliases(frontend):
        if (family := known.get(alias.source)) is not None and (made := _made(alias, family, known, workers)).samples:
            yield made


def _made(
    alias: Alias, family: "Metric", known: "Mapping[str, Metric]", workers: Mapping[tuple[str, str], Labels]
) -> "Metric":
    from prometheus_client.core import Metric

    name = name_of(alias)
    made = Metric(name, alias.metric.help, alias.metric.kind)
    whole = known.get(alias.share_of)
    sizes = {frozenset(one.labels.items()): one.value for one in (whole.samples if whole else ())}
    sums: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for one in family.samples:
        ending = one.name.removeprefix(family.name)
        if (alias.part and ending != alias.part) or ending == "_created":
            continue
        worker = workers.get((one.labels.get("process", ""), one.labels.get("actor", "")), {})
        labels = alias.relabel(one.labels, worker)
        if labels is None:
            continue
        if "le" in one.labels:
            labels["le"] = one.labels["le"]
        if alias.share_of:
            size = sizes.get(frozenset(one.labels.items()), 0.0)
            value = one.value / size if size else 0.0
        else:
            value = one.value
        ending = "_total" if alias.metric.kind == "counter" else ending
        key = (ending, frozenset(labels.items()))
        before = sums.get(key)
        sums[key] = one._replace(name=name + ending, labels=labels, value=value + (before.value if before else 0.0))
    made.samples = list(sums.values())
    return made
