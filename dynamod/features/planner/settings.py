"""Settings of a planner. Names and defaults are NVIDIA Dynamo's where it has them; `-` and `_` are the same."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from dynamod.extension import installed
from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.message.discovery import PREFILL
from dynamod.message.errors import UserError
from dynamod.message.install import extra_hint
from dynamod.observe.memory import size

Target = Literal["sla", "throughput", "latency", "load"]
TARGETS: tuple[str, ...] = get_args(Target)
Predictor = Literal["constant", "trend", "kalman", "arima"]

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Ratio = Annotated[float, Meta(gt=0)]


class PlannerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """`optimization_target` sla: first tokens within `ttft` ms for all but `late` of the requests, others within `itl`.

    The other targets compare KV use and queued prompts with thresholds, by one worker at a time: `throughput` and
    `latency` with NVIDIA Dynamo's, `load` with `decode_kv_scale_up_threshold` and `_down_` (shares of the cache), that
    of prefill workers with `prefill_queue_scale_up_threshold` and `_down_` (prompts that wait, per worker).
    `adjustment_interval`: seconds between two ticks. `window`: seconds of arrivals that count. `hold`: seconds for
    which what was needed is kept; by default the mean of `window` and `startup`, at least `startup`. `startup`: seconds
    that they take, until it has been measured. `drain_timeout`: seconds that open streams of a worker that goes get to
    finish; then they move to others. `no_operation` (or `advisory`): decide, and change nothing.
    `max_gpu_budget`: GPUs of the workers of all pools together; a worker without GPUs counts as one. `max_memory`:
    resident bytes of the workers of all pools on a node, or like 48GiB.
    `metric_pulling_interval`: seconds between two looks at the processes of a pool. `prefill_`, `decode_min_endpoint`:
    instead of `min_endpoint`, for that pool; with 0 a pool without requests for `hold` has no workers, and gets one
    when a request waits. `environment`: what runs the processes: the daemon; an outside program, by
    keys in etcd; Kubernetes, in a pod without further settings. `kubernetes_deployments`: by component, the name of a
    Deployment, or statefulset/NAME, or dgdsa/NAME; without one, the component in small letters. `role_switch`: a worker
    may change between prefill and decode, where that is as good as a start.
    """

    optimization_target: Target = "sla"
    ttft: Seconds = 2000.0
    itl: Seconds = 50.0
    late: Share = 0.1
    adjustment_interval: Seconds = 5.0
    window: Seconds = 30.0
    hold: Annotated[float, Meta(ge=0)] | None = None
    startup: Annotated[float, Meta(ge=0)] = 30.0
    load_predictor: Predictor = "trend"
    min_endpoint: Count = 1
    max_gpu_budget: Annotated[int, Meta(ge=1)] = 8
    max_memory: int | str | None = None
    decode_kv_scale_up_threshold: Share = 0.9
    decode_kv_scale_down_threshold: Share = 0.5
    prefill_queue_scale_up_threshold: Ratio = 0.5
    prefill_queue_scale_down_threshold: Ratio = 0.2
    metric_pulling_interval: Seconds = 1.0
    drain_timeout: Seconds = 30.0
    environment: Literal["local", "virtual", "kubernetes"] = "local"
    kubernetes_url: str = ""
    kubernetes_namespace: str = ""
    kubernetes_deployments: dict[str, str] = {}
    prefill_min_endpoint: Count | None = None
    decode_min_endpoint: Count | None = None
    role_switch: bool = True
    no_operation: bool = False
    advisory: bool = False

    def __post_init__(self) -> None:
        for name in ("min_endpoint", "prefill_min_endpoint", "decode_min_endpoint"):
            least = getattr(self, name)
            if least is not None and least > self.max_gpu_budget:
                key = name.replace("_", "-")
                raise ValueError(f"{key} {least} is above max-gpu-budget {self.max_gpu_budget}")
        for name in ("decode_kv", "prefill_queue"):
            keys = f"{name}_scale_down_threshold", f"{name}_scale_up_threshold"
            (down, up), shown = (getattr(self, key) for key in keys), [key.replace("_", "-") for key in keys]
            if down >= up:
                raise ValueError(f"{shown[0]} {down:g} is not below {shown[1]} {up:g}")
        if self.memory is not None and self.memory <= 0:
            raise ValueError(f"max-memory is {self.max_memory}; it must be above 0")
        if self.memory is not None and self.environment != "local":
            raise ValueError(f"max-memory: what workers take is not known with environment {self.environment}")
        if self.load_predictor == "arima" and find_spec("statsmodels") is None:
            raise ValueError(f"load-predictor arima needs statsmodels: {extra_hint('arima')}")

    @property
    def memory(self) -> int | None:
        """The `max_memory`; None: no limit."""
        return None if self.max_memory is None else size(self.max_memory)

    def least(self, pool: str) -> int:
        """Workers that a pool has at least: the pool of prefill workers, or any other."""
        own = self.prefill_min_endpoint if pool == PREFILL else self.decode_min_endpoint
        return self.min_endpoint if own is None else own


def pool_kind(attribute: str) -> str:
    """The kind of a pool, by the attribute with which a planner's service depends on it, as `least` takes it."""
    return PREFILL if attribute.startswith(PREFILL) else "decode"


def check_budget(settings: PlannerSettings, spec: ServiceSpec, graph: Graph) -> None:
    """Raise UserError when the least of the pools together is above the budget.

    Also where a pool may have no workers, and the feature is off by which requests wait for a worker.
    """
    pools = [(info.service, settings.least(pool_kind(attribute))) for attribute, info in spec.depends.items()]
    there = [(name, least, max(1, graph.services[name].gpus)) for name, least in pools if name in graph.services]
    if not all(least for _, least, _ in there):
        installed.require("on_demand", f"{spec.name}: min-endpoint 0")
    if sum(least * gpus for _, least, gpus in there) > settings.max_gpu_budget:
        parts = " and ".join(
            f"{least} of {name}" + (f" with {gpus} GPUs each" if gpus > 1 else "") for name, least, gpus in there
        )
        problem = f"{spec.name}: min-endpoint asks for {parts}, above max-gpu-budget {settings.max_gpu_budget}"
        raise UserError(problem, "a worker without GPUs counts as one; raise max-gpu-budget, or lower min-endpoint")


def settings_of(given: Mapping[str, Any]) -> PlannerSettings:
    """Check settings. Raises UserError that names the key."""
    names = {name.replace("_", "-"): value for name, value in given.items()}
    try:
        return msgspec.convert(names, PlannerSettings)
    except msgspec.ValidationError as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(PlannerSettings))
        raise UserError(f"planner: {error}", f"known settings: {known}") from None
