"""vLLM's statistics: the load, and what is known of a step."""

import time
from typing import Any

from msgspec.structs import replace

from dynamod.message.kv_events import ForwardPass, QueuedRequests, ScheduledRequests

from ..adapter.engine import AdapterEngine
from ..batching.steps import NOTHING, summary
from .tiers import record
from .transfer import VllmTransfer


class _Rank:
    """The last step of a rank. `seconds`: 0 where not known; `computed`, `due`: as of `StepClock`."""

    __slots__ = ("computed", "due", "ended", "iteration", "scheduler", "seconds", "steps")

    def __init__(self) -> None:
        self.scheduler: Any = None
        self.iteration: Any = None
        self.steps = self.computed = self.due = 0
        self.ended = self.seconds = 0.0

    def take(self, scheduler: Any, iteration: Any) -> None:
        """A step has been computed. vLLM measures it with `enable_logging_iteration_details`.

        Else it has taken the time since the last one, if there were requests to continue with.
        """
        now, before, self.scheduler, self.iteration = time.monotonic(), self.scheduler, scheduler, iteration
        details = getattr(scheduler, "iteration_details", None)
        if details is not None:
            self.seconds = details.elapsed_ms / 1000
            self.computed += details.num_ctx_tokens + details.num_generation_tokens
        else:
            self.seconds = now - self.ended if before is not None and before.num_running_reqs else 0.0
            self.computed += iteration.num_generation_tokens if iteration is not None else 0
        self.steps, self.ended = self.steps + 1, now

    def counts(self) -> dict[str, int]:
        """What is known of the requests of the step."""
        details, iteration = getattr(self.scheduler, "iteration_details", None), self.iteration
        if details is not None:
            return {
                "num_prefill_requests": details.num_ctx_requests,
                "sum_prefill_tokens": details.num_ctx_tokens,
                "num_decode_requests": details.num_generation_requests,
            }
        return {} if iteration is None else {"num_decode_requests": len(iteration.inter_token_latencies_iter)}


class Statistics:
    """A logger of vLLM's statistics, by duck type: its base class is not there before vLLM is imported.

    `blocks`: of each rank; `count`: of ranks.
    """

    def __init__(self, engine: AdapterEngine) -> None:
        self._engine = engine
        self._ranks: dict[int, _Rank] = {}
        self.blocks = self.count = 0

    def of_rank(self, _config: Any, _rank: int = 0) -> "Statistics":
        """The same for all ranks."""
        return self

    def record(self, scheduler: Any, iteration: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        """Once per step of a rank."""
        engine = self._engine
        if iteration is not None:
            engine.counts.preemptions += iteration.num_preempted_reqs
            for one in iteration.finished_requests:
                engine.counts.prompt_rate.add(one.num_prompt_tokens, one.num_cached_tokens, one.prefill_time)
        if scheduler is None:
            return
        engine.counts.steps += 1
        engine.counts.queried += scheduler.prefix_cache_stats.queries
        engine.counts.hits += scheduler.prefix_cache_stats.hits
        if engine.host_tier is not None and scheduler.connector_prefix_cache_stats is not None:
            engine.counts.hits += scheduler.connector_prefix_cache_stats.hits  # what is loaded counts as found
        rank = self._ranks.get(engine_idx) or self._ranks.setdefault(engine_idx, _Rank())
        rank.take(scheduler, iteration)
        engine.counts.queued = sum([one.scheduler.num_waiting_reqs for one in self._ranks.values()])
        engine.counts.used_blocks = round(
            sum([one.scheduler.kv_cache_usage for one in self._ranks.values()]) * self.blocks
        )
        if engine.stepped is not None and rank.computed >= rank.due and rank.seconds:
            rank.due = rank.computed + engine.stepped(engine_idx)
        if not scheduler.kv_connector_stats:
            return
        if isinstance(engine.own_transfer, VllmTransfer):
            engine.own_transfer.record(scheduler.kv_connector_stats)
        elif engine.host_tier is not None:
            record(engine.host_tier, scheduler.kv_connector_stats)

    def forward_pass(self, number: int) -> ForwardPass | None:
        """The last step of a rank. The sums of KV tokens and of waiting prompts are those of the requests seen here.

        They are not known where there are several ranks, or requests of other engines.
        """
        if number >= self.count:
            return None
        rank, lengths = self._ranks.get(number, _Rank()), self._engine.open.lengths() if self.count == 1 else None
        if not self._engine.open.count or rank.scheduler is None:
            return ForwardPass(rank.steps, 0.0, NOTHING, QueuedRequests(0, 0, 0.0), number)
        waiting = rank.scheduler.num_waiting_reqs
        queued, decoded = QueuedRequests(waiting), ScheduledRequests()
        if lengths is not None:
            unanswered, answers = lengths
            queued = QueuedRequests(*summary(unanswered[-waiting:] if waiting else []))
            _, total, variance = summary(answers)
            decoded = ScheduledRequests(sum_decode_kv_tokens=total, var_decode_kv_tokens=variance)
        return ForwardPass(rank.steps, rank.seconds, replace(decoded, **rank.counts()), queued, number)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def log(self) -> None:
        """Nothing to say."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Engines of workers do not sleep."""
