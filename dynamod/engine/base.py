"""What every engine implements.

An engine declares in `serves` which requests it takes: `Generate` (ids in, ids out), `Chat` (the client's request in,
text out), `Embed` (ids in, vectors out). It answers through the `Reply` it is given: `tokens`, `text` or `items` once
per step, the last with a finish reason, or `failed`. It watches `reply.cancelled` (or `on_cancel`), and
frees the slot then.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from dynamod.actor import Total
from dynamod.message import tokens
from dynamod.message.discovery import Adapter, Capabilities, DisaggregationMode, ModelCard
from dynamod.message.errors import BadRequest, NotFound, UserError
from dynamod.message.kv_events import ForwardPass, Load, WorkerEvent
from dynamod.message.worker import LEAVING, Chat, Embed, Generate, Grammar, Request
from dynamod.transport.base import Reply

from .own_transfer import OwnTransfer
from .step_times import StepTimes

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

    running: int = 0
    waiting: int = 0
    tokens: Total = 0
    steps: Total = 0
    in_step_for: float | None = None
    step_tokens: int = 0
    usual_step_seconds: float = 0.0


class StepClock:
    """Counts the steps of an engine, learns how long they take, and knows since when the current one runs.

    `computed`: tokens of all steps, of prompts and answers; `due`: how many these are when the next step is described.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # uvloop's own time is in whole milliseconds, and steps may be shorter.
        self._now = time.monotonic if type(loop).__module__.startswith("uvloop") else loop.time
        self._since: float | None = None
        self._tokens = self.steps = self.computed = self.due = 0
        self._times = StepTimes()

    def begin(self, tokens: int) -> None:
        """A step that computes so many tokens begins."""
        self._since, self._tokens = self._now(), tokens
        self.steps += 1
        self.computed += tokens

    def end(self) -> None:
        """The step is over."""
        if self._since is not None:
            self._times.add(self._tokens, self._now() - self._since)
        self._since = None

    @property
    def current(self) -> tuple[float, int, float] | None:
        """Seconds since the step began, the tokens that it computes, and what such a step usually takes; else None."""
        if self._since is None:
            return None
        return self._now() - self._since, self._tokens, self._times.usual(self._tokens)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with. `arguments` are the engine's own (`--extra-engine-args`, YAML keys).

    GPUs and nodes: `placement.Placement`; an engine with a `node_rank` above 0 gets no requests, and its card is not
    published. `name`: for clients. `model`: as the user wrote it, for engines without files. `kv_cache_block_size`:
    tokens; None: the engine's own. `sockets`: folder for sockets that the engine opens, private and removed with the
    daemon; None: it makes one. `lora`: adapters, still without digests. `disaggregation_mode`: which part of requests
    it is for. `transfer_host`: of prefill workers, the address at which other nodes read KV blocks from it.
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


def _ignore(_what: object) -> None:
    """Nobody has subscribed."""


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

    While somebody wants to know of steps it sets `stepped(rank)`, to be called when a step that `forward_pass`
    describes has been computed; it returns how many tokens, of prompts and answers, come before the next call.
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
        self.stepped: Callable[[int], int] | None = None
        self.own_transfer: OwnTransfer | None = None  # set by `start` where the engine moves KV blocks by itself

    @abstractmethod
    async def start(self) -> None:
        """Load, and set `_card`. Raises UserError for what a user can mend, anything else is a crash."""

    @abstractmethod
    def submit(self, request: RequestT, reply: Reply) -> None:
        """Begin to work on a request of a type in `serves`. Must not block.

        Raises RequestError for a request that it cannot take; later errors go to `reply.failed`.
        """

    def prepared(self, grammar: Grammar) -> bool:
        """Whether a request with that grammar may be submitted now."""
        return True

    async def prepare(self, grammar: Grammar) -> None:
        """What takes too long for `submit`. Only for engines with the capability `grammars`. Raises RequestError."""
        return

    # Adapters, for engines with the capability `lora`.

    async def load_adapter(self, adapter: Adapter, *, inplace: bool) -> Adapter:
        """Load it, or take the place of the one of that name; the card lists it then. Returns it with its digest.

        One that comes with its digest is not read again while the engine has it, listed or not. Raises BadRequest,
        NotFound (there is no such file).
        """
        if not self.card().capabilities.lora:
            raise BadRequest(f"engine {self.name}, as it has been started, loads no LoRA adapters", param="lora_name")
        from .lora import digested  # not needed by engines without adapters

        there = {one.name: one for one in self.card().adapters}
        before = there.get(adapter.name)
        if before is not None and before.digest == adapter.digest:
            return before
        held = self.holds_adapter(adapter.digest)
        if not held and not await asyncio.to_thread(Path(adapter.path).exists):
            raise NotFound(f"no adapter found at {adapter.path}", param="lora_path", code="adapter_not_found")
        if adapter.name == self.card().name:
            raise BadRequest(f"{adapter.name!r} is the name of the model", param="lora_name")
        try:
            found = adapter if held else await asyncio.to_thread(digested, adapter)
            replaces = before is not None and before.digest != found.digest
            if replaces and not inplace:
                raise BadRequest(f"the adapter {adapter.name!r} is loaded already", param="lora_name")
            await self.take_adapter(found)
        except UserError as error:
            raise BadRequest(error.line(), param="lora_path") from None
        self._list_adapters({**there, found.name: found})
        if before is not None and replaces:
            await self.leave_adapter(before)
        return found

    async def unload_adapter(self, name: str) -> None:
        """The card lists it no more; answers that it has begun are finished. Raises NotFound."""
        there = {one.name: one for one in self.card().adapters}
        if name not in there:
            raise NotFound(f"the adapter {name!r} is not loaded", param="lora_name", code="adapter_not_found")
        gone = there.pop(name)
        self._list_adapters(there)
        await self.leave_adapter(gone)

    def holds_adapter(self, digest: str) -> bool:
        """Whether it is loaded, although the card may list it no more."""
        return False

    async def take_adapter(self, adapter: Adapter) -> None:
        """Load one, or keep what `holds_adapter`; another of its name goes on until the card lists this one.

        Raises UserError.
        """
        raise NotImplementedError

    async def leave_adapter(self, adapter: Adapter) -> None:
        """The card does not list it any more: free it when nobody needs it."""
        raise NotImplementedError

    def _list_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        self._card = msgspec.structs.replace(self._card, adapters=tuple(adapters.values()))

    @abstractmethod
    def statistics(self) -> EngineStatistics:
        """Load and totals, also before `start` has returned."""

    def card(self) -> ModelCard:
        """The card to publish, valid after `start`."""
        return self._card

    def load(self) -> Load:
        """The engine's own count, for routers. Asked a few times a second while somebody subscribes."""
        now = self.statistics()
        return Load(now.running, now.waiting, 0, 0, 0.0)

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """All that a new subscriber must know: what is in the KV cache, and the load."""
        return (self.load(),)

    def forward_pass(self, rank: int) -> ForwardPass | None:
        """The step that a rank computes now, with `wall_time` 0 when it is idle.

        None: there is no such rank, or the engine does not know.
        """
        return None

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int] | None:
        """What a request costs this engine: sequence hashes of its prompt's full blocks, prompt tokens not cached now.

        None: the engine cannot tell. Called just before `submit` of the same request.
        """
        return None

    async def close(self) -> None:
        """Free everything. Streams that are open have been cancelled or finished before."""
        return

    async def _model_card(self, path: Path | None = None, **fields: Any) -> ModelCard:
        """The card of a model with files, read in a thread. `path`: in place of the option. Raises UserError.

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
        return await asyncio.to_thread(read_card, path, **{**known, **fields})

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


@dataclass(frozen=True, slots=True)
class Job:
    """The message of a worker's mailbox: a request and where its answer goes."""

    request: Request
    reply: Reply

    def undeliverable(self, why: str) -> None:
        """The worker ends or drains before it read this: the sender may try elsewhere (called by the kernel)."""
        self.reply.failed("Overloaded", why, retry=True, code=LEAVING)
