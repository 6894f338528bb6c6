"""The services that the shipped graphs are made of, and the settings that each takes in a config file.

Each is run by an actor of dynamod (`actor=`); a service of your own is a plain class with endpoints instead.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dynamod.graph.service import depends, endpoint, service
from dynamod.router.cost import TERMS
from dynamod.router.policies import NAMES


class Settings(BaseModel):
    """Base of all settings: `max-model-len` and `max_model_len` are the same key, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class FrontendSettings(Settings):
    """The OpenAI front door."""

    host: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    served_model_name: str | None = Field(None, description="accepted for old files; the worker names the model")
    endpoint: str | None = Field(None, description="accepted for old files, like dynamo.Processor.chat/completions")
    body_limit_mb: float | None = Field(None, gt=0, description="largest request body")
    api_keys: str | None = Field(None, description="comma separated keys; clients send one as Bearer token")
    api_key_file: str | None = Field(None, description="file with one key per line")
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    overload_status: int = Field(503, ge=400, le=599, description="HTTP status when no worker can take a request")
    tls_cert_path: str | None = None
    tls_key_path: str | None = None
    client_timeout: float | None = Field(None, ge=0, description="seconds a client may take nothing (300, 0: for ever)")
    keep_alive: float | None = Field(None, ge=0, description="seconds between SSE comments on a silent stream")
    request_timeout: float | None = Field(None, gt=0, description="seconds for a whole request")


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


class WorkerSettings(Settings):
    """An engine with one model."""

    engine: str = Field(
        "mistralrs", description="echo_core, echo_full, llamacpp, mistralrs, mocker, pystr:FILE, pytok:FILE"
    )
    model: str | None = Field(None, description="folder, GGUF file, Hugging Face repository, or `sample`")
    model_config_path: str | None = Field(None, alias="model_config", description="tokenizer and template from here")
    served_model_name: str | None = Field(None, description="name that clients use; default: from the model's path")
    endpoint: str = "generate"
    context_length: int | None = Field(None, gt=0, description="reduce the model's context to this")
    kv_cache_block_size: int | None = Field(None, gt=0, description="tokens per block; the engine's own (mocker 64)")
    migration_limit: int = Field(3, ge=0, le=1023)
    tensor_parallel_size: int = Field(1, ge=1, le=255)
    base_gpu_id: int = Field(0, ge=0)
    static: bool = Field(False, description="serve at a fixed address that needs no discovery, and publish no model")
    heartbeat_timeout: float | None = Field(None, gt=0, description="seconds of silence: the process is stopped (2)")
    stall_timeout: float | None = Field(None, gt=0, description="seconds that a step of the engine may take (10)")
    stall_per_token: float | None = Field(None, gt=0, description="seconds more for each token of the step (0.01)")
    engine_args: dict[str, Any] = Field({}, description="handed to the engine as they are")


@service(
    dynamo={"namespace": "dynamo", "component_type": "worker"},
    config=WorkerSettings,
    actor="dynamod.runtime.components.worker:WorkerComponent",
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
    actor="dynamod.runtime.components.processor:ProcessorComponent",
)
class Processor:
    """Prepares requests and sends them to workers."""

    worker = depends(Worker)


@service(
    dynamo={"namespace": "dynamo"},
    config=FrontendSettings,
    actor="dynamod.runtime.components.frontend:FrontendComponent",
)
class Frontend:
    """Listens for OpenAI clients."""

    processor = depends(Processor)
