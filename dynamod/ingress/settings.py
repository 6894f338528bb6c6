"""What an operator can decide about the processor: the keys of its section in a config file.

The keys are NVIDIA Dynamo's where it has them.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from dynamod.message.errors import UserError
from dynamod.router.approx import TTL
from dynamod.router.cost import TERMS, weights_of
from dynamod.router.policies import NAMES, mode_of
from dynamod.router.settings import RouterSettings

if TYPE_CHECKING:
    from dynamod.migration.base import Limits

Share = Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=0, le=1e9)]
Seconds = Annotated[float, Meta(gt=0)]
Moves = Annotated[int, Meta(ge=0, le=1023)]
Tokens = Annotated[int, Meta(ge=1, le=2**31)]

VARIABLES = {"DYN_MIGRATION_LIMIT": "migration_limit", "DYN_MIGRATION_MAX_SEQ_LEN": "migration_max_seq_len"}
"""NVIDIA Dynamo's environment variables, and the key that each gives when the section does not."""


class ProcessorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chat template, tokenizer, choice of an instance, migration."""

    SECTION: ClassVar = "processor"
    model: Annotated[str | None, Meta(description="accepted for old files; models are found by discovery")] = None
    block_size: int | None = None
    max_model_len: int | None = None
    router: Annotated[str | None, Meta(description="old name of router_mode")] = None
    router_mode: Annotated[
        str | None, Meta(description=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}; {NAMES[0]} by default")
    ] = None
    router_cost: Annotated[
        dict[str, float] | Literal["original"] | None,
        Meta(description=f"weights of the KV cost: {', '.join(TERMS)}; or the word original"),
    ] = None
    kv_overlap_score_weight: Annotated[Factor, Meta(description="scales every prompt term; 0: only active blocks")] = (
        1.0
    )
    router_temperature: Annotated[Factor, Meta(description="0 takes the lowest cost, above it chance by softmax")] = 0.0
    use_kv_events: Annotated[bool, Meta(description="false: guess what is cached from what was sent")] = True
    router_ttl_secs: Annotated[Seconds, Meta(description="seconds for which that guess holds")] = TTL
    active_decode_blocks_threshold: Annotated[
        Share | None, Meta(description="a worker with a larger share of its KV blocks in use is busy and gets nothing")
    ] = None
    active_prefill_tokens_threshold: Annotated[
        Factor | None, Meta(description="a worker with more prompt tokens still to compute is busy and gets nothing")
    ] = None
    router_queue_size: Annotated[
        int, Meta(ge=0, description="requests that wait when all are busy; more are refused")
    ] = 0
    router_min_initial_workers: Annotated[
        int, Meta(ge=1, description="workers that a model must have had at once before requests are sent to them")
    ] = 1
    shadow_router_mode: Annotated[str | None, Meta(description="another mode, scored and counted, never acted on")] = (
        None
    )
    migration_limit: Annotated[Moves | None, Meta(description="moves of a request to another instance")] = None
    migration_max_seq_len: Annotated[
        Tokens | None,
        Meta(description="tokens of prompt and answer above which an answer is not continued elsewhere"),
    ] = None
    only_endpoint: Annotated[
        str | None, Meta(description="dyn://ns.component.endpoint: serve only what is found there")
    ] = None
    static_model: Annotated[
        str | None, Meta(description="with only_endpoint: model of a static worker, for its tokenizer")
    ] = None
    static_model_name: Annotated[str | None, Meta(description="name of that model")] = None
    queue_timeout: Annotated[
        Seconds | None, Meta(description="seconds until an instance takes the request; null: no limit")
    ] = 30.0
    first_token_timeout: Annotated[
        Seconds | None, Meta(description="seconds until the first token; null: no limit")
    ] = 600.0
    token_gap_timeout: Annotated[Seconds | None, Meta(description="seconds between tokens; null: no limit")] = 120.0
    request_timeout: Annotated[Seconds | None, Meta(description="seconds for the whole request")] = None

    def __post_init__(self) -> None:
        self.routing()
        if self.static_model and not self.only_endpoint:
            raise UserError("static_model needs only_endpoint", "say where: dyn://namespace.component.endpoint")

    def routing(self) -> RouterSettings:
        """How to choose an instance. Raises UserError for an unknown mode or weight."""
        return RouterSettings(
            mode=mode_of(self.router_mode or self.router or NAMES[0]),
            weights=weights_of(self.router_cost),
            overlap_weight=self.kv_overlap_score_weight,
            temperature=self.router_temperature,
            kv_events=self.use_kv_events,
            ttl=self.router_ttl_secs,
            shadow_mode=mode_of(self.shadow_router_mode) if self.shadow_router_mode else None,
            busy_blocks=self.active_decode_blocks_threshold,
            busy_prefill=self.active_prefill_tokens_threshold,
            queue_size=self.router_queue_size,
            initial_workers=self.router_min_initial_workers,
        )

    def limits(self) -> "Limits":
        """How long a request may take."""
        from dynamod.migration.base import Limits  # a command that reads a graph does not need it

        return Limits(self.queue_timeout, self.first_token_timeout, self.token_gap_timeout, self.request_timeout)


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings that VARIABLES give. Raises UserError that names the variable."""
    env, found = os.environ if environ is None else environ, dict[str, Any]()
    kinds = {field.name: field.type for field in msgspec.structs.fields(ProcessorSettings)}
    for variable, key in VARIABLES.items():
        if text := env.get(variable):
            try:
                found[key] = msgspec.convert(text, kinds[key], strict=False)
            except msgspec.ValidationError as error:
                raise UserError(f"{variable} is {text!r}", str(error).replace("`", "")) from None
    return found
