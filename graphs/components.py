"""The services that the shipped graphs are made of, and the settings that each takes in a config file.

Each is run by an actor of dynamod: `actor=` names its kind, see `dynamod.runtime.components`. A service of your own is
a plain class with endpoints instead.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dynamod.graph.service import depends, endpoint, service
from dynamod.http.settings import FrontendSettings
from dynamod.router.cost import TERMS
from dynamod.router.policies import NAMES
from dynamod.worker.settings import WorkerSettings


class Settings(BaseModel):
    """Base of all settings: `max-model-len` and `max_model_len` are the same key, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ProcessorSettings(Settings):
    """Chat template, tokenizer, choice of an instance, migration."""

    model: str | None = Field(None, description="accepted for old files; models are found by discovery")
    block_size: int | None = None
    max_model_len: int | None = None
    router: str | None = Field(None, description="old name of router_mode")
    router_mode: str | None = Field(None, description=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}; {NAMES[0]} by default")
    router_cost: dict[str, float] | Literal["original"] | None = Field(
        None, description=f"weights of the KV cost: {', '.join(TERMS)}; or the word original"
    )
    kv_overlap_score_weight: float = Field(1.0, ge=0, description="scales every prompt term; 0: only active blocks")
    router_temperature: float = Field(0.0, ge=0, description="0 takes the lowest cost, above it chance by softmax")
    use_kv_events: bool = Field(True, description="false: guess what is cached from what was sent")
    router_ttl_secs: float = Field(120.0, gt=0, description="seconds for which that guess holds")
    active_decode_blocks_threshold: float | None = Field(
        None, ge=0, le=1, description="a worker with a larger share of its KV blocks in use is busy and gets nothing"
    )
    active_prefill_tokens_threshold: float | None = Field(
        None, ge=0, description="a worker with more prompt tokens still to compute is busy and gets nothing"
    )
    router_queue_size: int = Field(0, ge=0, description="requests that wait when all are busy; more are refused")
    shadow_router_mode: str | None = Field(None, description="another mode, scored and counted, never acted on")
    migration_limit: int | None = Field(None, ge=0, le=1023, description="moves of a request to another instance")
    migration_max_seq_len: int | None = Field(
        None, ge=1, description="tokens of prompt and answer above which an answer is not continued elsewhere"
    )
    only_endpoint: str | None = Field(None, description="dyn://ns.component.endpoint: serve only what is found there")
    static_model: str | None = Field(
        None, description="with only_endpoint: model of a static worker, for its tokenizer"
    )
    static_model_name: str | None = Field(None, description="name of that model")
    queue_timeout: float | None = Field(30.0, gt=0, description="seconds until an instance takes the request")
    first_token_timeout: float | None = Field(600.0, gt=0, description="seconds until the first token")
    token_gap_timeout: float | None = Field(120.0, gt=0, description="seconds between tokens")
    request_timeout: float | None = Field(None, gt=0, description="seconds for the whole request")


@service(
    dynamo={"namespace": "dynamo", "component_type": "worker"},
    config=WorkerSettings,
    actor="worker",
)
class Worker:
    """Runs an engine in a process of its own."""

    @endpoint()
    async def generate(self, request: dict[str, Any]) -> Any:
        """Served by the actor."""

    @endpoint()
    async def load_metrics(self, request: dict[str, Any]) -> Any:
        """Served by the actor: one item, the engine's load as ForwardPassMetrics."""


@service(
    dynamo={"namespace": "dynamo"},
    config=ProcessorSettings,
    actor="processor",
)
class Processor:
    """Prepares requests and sends them to workers."""

    worker = depends(Worker)


@service(
    dynamo={"namespace": "dynamo"},
    config=FrontendSettings,
    actor="frontend",
)
class Frontend:
    """Listens for OpenAI clients."""

    processor = depends(Processor)
