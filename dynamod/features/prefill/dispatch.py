"""Prefill at the dispatcher: where a prompt is computed, and its place at a prefill worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.discovery.keys import OPERATOR_SETTINGS
from dynamod.discovery.records import keep
from dynamod.ingress.dispatch_stage import DispatchStage, Key
from dynamod.message.discovery import PREFILL
from dynamod.message.errors import Internal
from dynamod.observe.metrics import Row
from dynamod.router.active import Load
from dynamod.router.decision import Decision
from dynamod.router.placement import Acquire

from .decision import PrefillState, decide, state_of, way_of
from .settings import LivePrefill, PrefillSettings

if TYPE_CHECKING:
    from dynamod.ingress.dispatcher import Dispatcher


class RemotePrefill(msgspec.Struct, frozen=True):
    """Prompts of a model that prefill workers computed."""

    remote_prefill_total: Annotated[int, Meta(description="Prompts that prefill workers computed.")]
    remote_prefill_failed_total: Annotated[
        int, Meta(description="Prompts of prefill workers that had to be computed again.")
    ]
    remote_prefill_tokens_total: Annotated[
        int, Meta(description="Tokens of these whole prompts; moved: dynamod_worker_handoff_tokens_total.")
    ]


class LocalPrefill(msgspec.Struct, frozen=True):
    """Prompts of a model that the answering worker computed although there are prefill workers."""

    local_prefill_total: Annotated[
        int, Meta(description="Prompts that the answering worker computed although there are prefill workers.")
    ]


class PrefillCounts:
    """Prompts of a model that prefill workers computed, and that stayed at the answering worker, by why."""

    __slots__ = ("failed", "local", "remote", "tokens")

    def __init__(self) -> None:
        self.remote = self.tokens = self.failed = 0
        self.local: Counter[str] = Counter()


class PrefillDispatch(DispatchStage):
    """Answers requests for prefill workers with a Placement, or the PrefillDecision against it.

    A request that `waits`, because the answering worker computes no prompts, waits as any other.
    """

    order = -1

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.settings = msgspec.convert(dispatcher.config or PrefillSettings(), PrefillSettings, from_attributes=True)
        self.counts: defaultdict[str, PrefillCounts] = defaultdict(PrefillCounts)
        self._live: dict[str, LivePrefill] = {}
        if dispatcher.link is not None:
            dispatcher.link.watch(OPERATOR_SETTINGS, keep(self._live, LivePrefill))

    def acquire(self, key: Key, message: Acquire) -> Any:
        """Decide on a prompt, and place it now unless it may wait."""
        if message.after is None:
            return None
        live = self._live.get(OPERATOR_SETTINGS + key[0])
        settings = live.over(self.settings) if live is not None else self.settings
        decision = decide(settings, self._state(message, message.after))
        if decision.remote and not message.waits:
            try:
                self._dispatcher.place(key, message)
            except Internal:
                pass  # logged; the prompt is computed where it is answered
            if message.placement is None:
                decision = msgspec.structs.replace(
                    decision, remote=False, reason="refused", rule="no prefill worker can take it"
                )
        self._dispatcher.decisions.note(message.after, "prefill", decision)
        return None if message.waits else message.placement or decision

    def _state(self, message: Acquire, answer: Decision) -> PrefillState:
        model, routers = message.model, self._dispatcher.routers
        group = self._dispatcher.router((model, PREFILL))
        there = routers.get((model, ""))
        state, workers = (group.state, group.workers) if group is not None else (None, set[int]())
        loads = [state.active.of(worker) for worker in workers] if state is not None else []
        published = [state.loads.get(worker) for worker in workers] if state is not None else []
        own = there.state.loads.get(answer.chosen) if there is not None else None
        here = there.state.active.of(answer.chosen) if there is not None else Load(0, 0, 0)
        use = own.active_blocks / own.total_blocks if own is not None and own.total_blocks else None
        way = way_of(own, published, answer.block_size)
        cached = answer.present * answer.block_size
        return state_of(message.prompt.tokens, cached, here, loads, use, required=message.waits, way=way)

    def rows(self, model: str, prefix: str, labels: dict[str, str]) -> Iterable[Row]:
        """Prompts by where they were computed."""
        prompts = self.counts[model]
        yield prefix, labels, RemotePrefill(prompts.remote, prompts.failed, prompts.tokens)
        for why, count in prompts.local.items():
            yield prefix, {**labels, "reason": why}, LocalPrefill(count)
