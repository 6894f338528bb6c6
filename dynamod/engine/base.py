"""What every engine implements. What only some engines can do is in `capabilities`.

An engine declares in `serves` which requests it takes: `Generate` (ids in, ids out), `Chat` (the client's request in,
text out), `Embed` (ids in, vectors out). It answers through the `Reply` of the request: `tokens`, `text` or `items`
once per step, the last with a finish reason, or `failed`. It watches `reply.cancelled` (or `on_cancel`), and frees the
slot of a request that is cancelled.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.kvcache.store import FindStores, no_stores
from dynamod.message import tokens
from dynamod.message.discovery import Adapter, Capabilities, DisaggregationMode, ModelCard
from dynamod.message.errors import BadRequest
from dynamod.message.kv_events import Load, WorkerEvent
from dynamod.message.worker import LEAVING, Chat, Embed, Generate, Request
from dynamod.transport.base import Reply

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]
"""Starts a task that belongs to the worker actor (its exception crashes the worker)."""

EngineRequest = Generate | Chat | Embed
"""The requests that some engine takes; the worker answers all others itself."""
RequestT = TypeVar("RequestT", bound=EngineRequest)


class EngineStatistics(msgspec.Struct, frozen=True):
    """Load now and totals. `in_step_for`: seconds since the current step began, None between steps.

    `step_tokens`: tokens that this step computes, of prompts and answers. `usual_step_seconds`: what such a step
    usually takes, as learned so far; 0: not known.
    """

    running: Annotated[int, Meta(description="Requests that the engine computes.")] = 0
    waiting: Annotated[int, Meta(description="Requests that wait in the engine.")] = 0
    tokens: Annotated[Total, Meta(description="Tokens of answers.")] = 0
    steps: Annotated[Total, Meta(description="Finished engine steps.")] = 0
    in_step_for: Annotated[
        float | None,
        Meta(description="Time since the current step began; no sample between steps.", extra={"unit": "seconds"}),
    ] = None
    step_tokens: Annotated[int, Meta(description="Tokens of prompts and answers that the current step computes.")] = 0
    usual_step_seconds: Annotated[
        float, Meta(description="Learned time of a step like the current one; 0: not known.")
    ] = 0.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with. `arguments` are the engine's own (`--extra-engine-args`, YAML keys).

    GPUs and nodes: `placement.Placement`; an engine with a `node_rank` above 0 gets no requests, and its card is not
    published. `name`: for clients. `model`: as the user wrote it, for engines without files. `kv_cache_block_size`:
    tokens; None: the engine's own. `sockets`: folder for sockets that the engine opens, private and removed with the
    daemon; None: it makes one. `lora`: adapters, still without digests. `disaggregation_mode`: which part of requests
    it is for. `transfer_host`: of prefill workers, the address at which other nodes read KV blocks from it.
    `stores`: gives what makes stores of KV blocks below the device.
    """

    name: str = ""
    path: Path | None = None
    config_path: Path | None = None
    context_length: int | None = None
    kv_cache_block_size: int | None = None
    migration_limit: int = 3
    tensor_parallel_size: int = 1
    base_gpu_id: int = 0
    num_nodes: int = 1
    node_rank: int = 0
    leader_addr: str = ""
    sockets: Path | None = None
    disaggregation_mode: DisaggregationMode = "aggregated"
    transfer_host: str = ""
    lora: tuple[Adapter, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    stores: FindStores = no_stores


def _ignore(_what: object) -> None:
    """There are no subscribers."""


def answer_limit(request: Generate, room: int) -> int:
    """Tokens that the answer may have, those of other instances too; `room`: for prompt and answer together.

    Raises BadRequest for a prompt that can never fit.
    """
    prompt, limit = tokens.count(request.token_ids), request.stops.max_tokens
    if not prompt:
        raise BadRequest("the prompt is empty")
    if prompt >= room:
        why = f"the prompt has {prompt} tokens, and this worker has room for {room} of prompt and answer together"
        raise BadRequest(why, code="context_length_exceeded")
    if limit == 0 and request.sampling.prompt_logprobs is not None:
        limit = 1  # a prompt is scored as it is computed for an answer, of which nothing is sent
    return room - prompt if limit is None else min(limit, room - prompt)


class Engine(ABC, Generic[RequestT]):
    """One loaded model. Made in its own process; `start` may take long and must not block the event loop.

    The worker sets, before `start`: `publish(event)`, for changes of the KV cache (with `capabilities.kv_events`),
    `prefill_completed(reply)`, to be called once when a request has its first token, `progress(text)`: what `start`
    does now, shown to users, and `phase(name)`: the phase of the start that begins now. It is `load` when `start` is
    called. All are cheap and never raise.

    While there are subscribers of steps, the worker sets `stepped(rank)`. An engine that `ReportsSteps` calls it when a
    step has been computed; it returns how many tokens, of prompts and answers, come before the next call.
    """

    name: ClassVar[str]
    serves: tuple[type[EngineRequest], ...]  # as it has been started
    capabilities: ClassVar[Capabilities] = Capabilities()
    _card: ModelCard

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        self.options = options
        self.spawn = spawn
        self.publish: Callable[[WorkerEvent], None] = _ignore
        self.prefill_completed: Callable[[Reply], None] = _ignore
        self.progress: Callable[[str], None] = _ignore
        self.phase: Callable[[str], None] = _ignore
        self.coming: Callable[[ModelCard], None] = _ignore
        self.stepped: Callable[[int], int] | None = None

    @abstractmethod
    async def start(self) -> None:
        """Load, and set `_card`. Raises UserError for what a user can mend, anything else is a crash."""

    @abstractmethod
    def submit(self, request: RequestT, reply: Reply) -> None:
        """Begin to work on a request of a type in `serves`. Must not block.

        Raises RequestError for a request that it cannot take; later errors go to `reply.failed`.
        """

    @abstractmethod
    def statistics(self) -> EngineStatistics:
        """Load and totals, also before `start` has returned."""

    def card(self) -> ModelCard:
        """The card to publish, valid after `start`."""
        return self._card

    def change_card(self, **fields: Any) -> None:
        """Give fields of the card new values. The worker publishes the card when it is asked to."""
        self._card = msgspec.structs.replace(self._card, **fields)

    def load(self) -> Load:
        """The engine's own count, for routers. Asked a few times a second while there are subscribers."""
        now = self.statistics()
        return Load(now.running, now.waiting, 0, 0, 0.0)

    async def close(self) -> None:
        """Free everything. Streams that are open have been cancelled or finished before."""
        return

    async def _model_card(self, path: Path | None = None, **fields: Any) -> ModelCard:
        """The card of a model with files, read in a thread. `path`: instead of the option. Raises UserError.

        `fields`: further ones of `read_card`.
        """
        from dynamod.preprocess.card import read_card  # not needed by engines without a model

        options, path = self.options, path or self.options.path
        assert path is not None
        known = {
            "name": options.name,
            "config": options.config_path,
            "context_length": options.context_length,
            "kv_cache_block_size": options.kv_cache_block_size or 16,
            "engine": self.name,
            "capabilities": self.capabilities,
            "migration_limit": options.migration_limit,
        }
        card = await asyncio.to_thread(read_card, path, **{**known, **fields})
        self.coming(card)
        return card

    def _card_without_files(self, name: str, **fields: Any) -> ModelCard:
        """The card of an engine that needs no model. `name`: when the user gave none."""
        options = self.options
        return ModelCard(
            name=options.name or name,
            engine=self.name,
            created=int(time.time()),
            context_length=options.context_length or 0,
            **fields,
        )


class Job(msgspec.Struct, frozen=True):
    """The message of a worker's mailbox: a request and where its answer goes."""

    request: Request
    reply: Reply

    def undeliverable(self, why: str) -> None:
        """The worker ends or drains before it read this: the sender may try elsewhere (called by the kernel)."""
        self.reply.failed("Overloaded", why, retry=True, code=LEAVING)
