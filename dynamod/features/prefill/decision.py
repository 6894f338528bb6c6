"""Where the prompt of a request is computed: by a prefill worker, or by the worker that answers. Pure."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Literal

import msgspec

from dynamod.message.kv_events import Load as EngineLoad
from dynamod.router.active import Load

from .settings import ConditionalDisagg, PrefillSettings

LONGEST_LOCAL, LONGEST_QUEUE = 1000, 2
"""NVIDIA Dynamo's limits: each holds where only the other one is given."""

INTERFERENCE = 0.25
"""What a token of a prompt costs each answer at the same worker, in tokens: that answer waits while it is computed."""

STEPS = 250
"""What a hand-off costs in any case, in tokens of a prompt: steps of its own at both workers."""

WAY = 250
"""What the last blocks on their way cost, in tokens of a prompt, where no worker has measured it."""

MOVE = STEPS + WAY
"""Both."""


class PrefillState(msgspec.Struct, frozen=True):
    """What a decision looks at. `cached`: of the prompt's `tokens` at the answering worker.

    `workers`: prefill workers; `requests`: prompts there, of which each worker computes one at a time; `before`: tokens
    of other prompts that the least busy one still has to compute. `decode_use`: share of the answering worker's KV
    blocks in use, None where that is not known. `before_here`: tokens of other prompts that the answering worker still
    has to compute; `answers_here`: other requests there. `required`: the answering worker computes no prompts. `way`:
    what the last blocks cost on their way, in tokens of prompts, as measured; None: not measured yet.
    """

    tokens: int
    cached: int
    workers: int
    requests: int
    before: int = 0
    decode_use: float | None = None
    before_here: int = 0
    answers_here: int = 0
    required: bool = False
    way: float | None = None

    @property
    def missing(self) -> int:
        """Tokens that the answering worker lacks."""
        return self.tokens - self.cached

    @property
    def queue(self) -> int:
        """Prompts that wait for a prefill worker."""
        return max(0, self.requests - self.workers)

    @property
    def here(self) -> float:
        """Tokens until the prompt is computed at the answering worker, and what other answers there lose by it."""
        return self.before_here + self.missing * (1 + INTERFERENCE * self.answers_here)

    @property
    def there(self) -> float:
        """Tokens until it is computed by a prefill worker, and has come over."""
        return self.before + self.missing + STEPS + (WAY if self.way is None else self.way)


def way_of(here: EngineLoad | None, prefill: Iterable[EngineLoad | None], size: int) -> float | None:
    """What moving a prompt takes beyond computing it, in tokens of prompts; None before it has been measured.

    `prefill`: what the prefill workers publish, whose mean counts. `here`: the same of the answering worker; where that
    has lost more because it did not reach one of them, this counts. `size`: tokens of a block.
    """
    there = [load for load in prefill if load is not None]
    moves = [load.move_ms for load in there if load.move_ms]
    rates = [load.prefill_ms / size for load in there if load.prefill_ms]
    lost = 0.0 if here is None else here.move_ms
    if not rates or not (moves or lost):
        return None
    return max(fmean(moves) if moves else 0.0, lost) / fmean(rates)


def state_of(
    tokens: int,
    cached: int,
    here: Load,
    prefill: Sequence[Load],
    decode_use: float | None = None,
    *,
    required: bool = False,
    way: float | None = None,
) -> PrefillState:
    """What a decision looks at, by the loads of the answering worker, with this request, and of the prefill workers.

    `way`: see `way_of`.
    """
    return PrefillState(
        tokens=tokens,
        cached=min(tokens, cached),
        workers=len(prefill),
        requests=sum(load.requests for load in prefill),
        before=min((load.prefill for load in prefill), default=0),
        decode_use=decode_use,
        before_here=max(0, here.prefill - max(1, tokens - cached)),
        answers_here=here.requests - 1,
        required=required,
        way=way,
    )


Reason = Literal[
    "off",
    "no_workers",
    "cached",
    "always",
    "sooner",
    "later",
    "short",
    "queue",
    "long",
    "policy",
    "decode_busy",
    "refused",
    "required",
]
"""Why a prompt is computed where it is, as a label of metrics."""


class PrefillDecision(msgspec.Struct, frozen=True):
    """Whether a prefill worker computes a prompt. `rule` says to people what decided, with its numbers."""

    remote: bool
    reason: Reason
    rule: str
    state: PrefillState


def decide(settings: PrefillSettings, state: PrefillState) -> PrefillDecision:
    """The decision for a prompt."""
    return PrefillDecision(*_rule(settings, state), state)


def _rule(settings: PrefillSettings, state: PrefillState) -> tuple[bool, Reason, str]:
    if state.required:
        why = "enforce_disagg is on" if settings.enforce_disagg else "the answering worker computes no prompts"
        return True, "required", why
    if not settings.remote_prefill:
        return False, "off", "remote_prefill is off"
    if not state.workers:
        return False, "no_workers", "there is no prefill worker"
    if state.missing <= 1:
        return False, "cached", "the answering worker has the prompt"
    if not settings.conditional_disagg:
        return True, "always", "conditional_disagg is off"
    if settings.router_conditional_disagg_config is not None:
        return _policy(settings.router_conditional_disagg_config, state)
    local, queue = settings.max_local_prefill_length, settings.max_prefill_queue_size
    if local is None and queue is None:
        here, there = f"{state.here:.0f} tokens here", f"{state.there:.0f} there"
        answers = f"{state.answers_here} other requests at the answering worker"
        if state.there < state.here:
            return True, "sooner", f"it costs {there}, {here} with {answers}"
        return False, "later", f"it costs {here} with {answers}, {there}"
    local, queue = LONGEST_LOCAL if local is None else local, LONGEST_QUEUE if queue is None else queue
    if state.missing <= local:
        return False, "short", f"not more than max_local_prefill_length {local}"
    if state.queue >= queue:
        return False, "queue", f"max_prefill_queue_size {queue} prompts wait"
    return True, "long", f"more than max_local_prefill_length {local}"


def _policy(policy: ConditionalDisagg, state: PrefillState) -> tuple[bool, Reason, str]:
    busy = policy.decode_busy_threshold
    if busy is not None and state.decode_use is not None and state.decode_use >= busy:
        return True, "decode_busy", f"the answering worker uses decode_busy_threshold {busy:g} of its blocks"
    if policy.policy != "prefill_load":
        most, share = policy.eff_isl_threshold, policy.eff_isl_ratio_threshold
        if state.missing < most and state.missing < share * state.tokens:
            return False, "short", f"less than eff_isl_threshold {most} and eff_isl_ratio_threshold {share:g}"
    if policy.policy != "isl_bounding":
        bound = policy.prefill_busy_threshold
        if bound is not None and state.before >= bound:
            return False, "queue", f"prefill_busy_threshold {bound} tokens are before it"
    return True, "policy", f"policy {policy.policy}"
