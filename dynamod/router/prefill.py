"""Where the prompt of a request is computed: by a prefill worker, or by the worker that answers. Pure."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]


class ConditionalDisagg(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The original's later condition (`--router-conditional-disagg-config`): when the answering worker keeps a prompt.

    `isl_bounding`: it lacks fewer than `eff_isl_threshold` tokens, and less than `eff_isl_ratio_threshold` of them all.
    `prefill_load`: each prefill worker has `prefill_busy_threshold` or more tokens of other prompts before it.
    `isl_or_load`: either. With `decode_busy_threshold` or more of its KV blocks in use it keeps none. None: no bound.
    """

    policy: Literal["isl_bounding", "prefill_load", "isl_or_load"] = "isl_bounding"
    eff_isl_threshold: Count = 2048
    eff_isl_ratio_threshold: Share = 0.7
    prefill_busy_threshold: Count | None = None
    decode_busy_threshold: Share | None = None


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """`remote` (`remote-prefill`): prefill workers are used. `conditional` (`conditional-disagg`): only if it pays.

    That is for prompts of which the answering worker lacks more than `longest_local` tokens
    (`max-local-prefill-length`), while fewer than `longest_queue` prompts wait for prefill workers
    (`max-prefill-queue-size`); or, in place of these, what `policy` says.
    """

    remote: bool = True
    conditional: bool = True
    longest_local: int = 1000
    longest_queue: int = 2
    policy: ConditionalDisagg | None = None


class PrefillState(msgspec.Struct, frozen=True):
    """What a decision looks at. `cached`: of the prompt's `tokens` at the answering worker.

    `workers`: prefill workers; `requests`: prompts there, of which each worker computes one at a time; `before`: tokens
    of other prompts that the least busy one still has to compute. `decode_use`: share of the answering worker's KV
    blocks in use, None where nobody knows. `required`: the answering worker computes no prompts.
    """

    tokens: int
    cached: int
    workers: int
    requests: int
    before: int = 0
    decode_use: float | None = None
    required: bool = False

    @property
    def missing(self) -> int:
        """Tokens that the answering worker lacks."""
        return self.tokens - self.cached

    @property
    def queue(self) -> int:
        """Prompts that wait for a prefill worker."""
        return max(0, self.requests - self.workers)


Reason = Literal[
    "off", "no_workers", "cached", "always", "short", "queue", "long", "policy", "decode_busy", "refused", "required"
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
        return True, "required", "the answering worker computes no prompts"
    if not settings.remote:
        return False, "off", "remote_prefill is off"
    if not state.workers:
        return False, "no_workers", "there is no prefill worker"
    if state.missing <= 1:
        return False, "cached", "the answering worker has the prompt"
    if not settings.conditional:
        return True, "always", "conditional_disagg is off"
    if settings.policy is not None:
        return _policy(settings.policy, state)
    if state.missing <= settings.longest_local:
        return False, "short", f"not more than max_local_prefill_length {settings.longest_local}"
    if state.queue >= settings.longest_queue:
        return False, "queue", f"max_prefill_queue_size {settings.longest_queue} prompts wait"
    return True, "long", f"more than max_local_prefill_length {settings.longest_local}"


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
