"""The router of one model: the decision for each request, and the account of what it has sent. No tasks, no clock.

`state` has what the workers publish. The dispatcher asks for a decision (`decide`) and reports what became of the
request (`started`, `prefill_completed`, `finished`). Everything here runs on the event loop of an ingress process, or
in virtual time in a replay.
"""

import random as random_module
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from heapq import nsmallest

import msgspec

from dynamod.kvcache.hashes import block_hashes as prompt_blocks
from dynamod.message.discovery import Instance
from dynamod.observe.bounded import bounded

from .approx import MAX_BLOCKS as GUESSED_BLOCKS
from .cost import applied
from .decision import KEPT, Candidate, Decision
from .eligible import ALL_ABLE, Eligible, Prompt
from .index import MAX_BLOCKS as INDEX_BLOCKS
from .overlap import MakeSource
from .policies import policy_class
from .policies.base import Choice, Question, choose
from .settings import RouterSettings
from .state import WorkerState

__all__ = ["Prompt", "Router", "RouterSettings", "RouterStatistics", "prompt_blocks"]

SESSIONS = 10_000
"""Sessions whose last worker is remembered; the oldest are forgotten."""


class RouterStatistics(msgspec.Struct, frozen=True):
    """Decisions; prompt blocks, and the blocks that the chosen worker had; locality given away; requests under way."""

    decisions: int
    blocks: int
    overlap: int
    regret: int
    active: int
    indexed_blocks: int
    orphan_events: int
    shadow_differs: int


class Router:
    """Decides for one model. `now`: monotonic seconds; `wall`: seconds since 1970, for records.

    `sources`: what features know of blocks outside the devices.
    """

    def __init__(
        self,
        model: str,
        block_size: int,
        settings: RouterSettings,
        random: random_module.Random,
        now: Callable[[], float],
        wall: Callable[[], float],
        pool: str = "",
        sources: Sequence[MakeSource] = (),
    ) -> None:
        self.model, self.block_size, self.settings, self.pool = model, block_size, settings, pool
        self.state = WorkerState(settings, block_size, now, sources)
        self.workers: set[int] = set()  # the present workers, kept by the dispatcher
        self._random, self._wall = random, wall
        self._policy = policy_class(settings.mode)()
        self._shadow = policy_class(settings.shadow_mode)() if settings.shadow_mode else None
        self._scores = settings.scores
        self._weights = applied(settings.weights, settings.overlap_weight)
        self._turn = 0
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._decisions = self._blocks = self._overlap = self._regret = self._shadow_differs = 0
        of = f"{model}, {pool}" if pool else model
        bounded(self, "router index", INDEX_BLOCKS, lambda one: one.state.index.statistics().blocks, "blocks", of)
        bounded(self, "router index, guessed", GUESSED_BLOCKS, lambda one: len(one.state.approx), "blocks", of)
        bounded(self, "router sessions", SESSIONS, lambda one: len(one._sessions), "sessions", of)

    def decide(
        self,
        prompt: Prompt,
        instances: Sequence[Instance],
        tried: Collection[int] = (),
        unable: Mapping[int, str] = ALL_ABLE,
    ) -> Decision | None:
        """The decision for a request among the instances of its model; None when none can take it now.

        `unable`: workers that cannot answer the request, with the reason.

        Best give the same tuple of instances as long as nothing has changed: then it is not even looked at.
        """
        self.state.refresh(instances)
        eligible = Eligible(prompt, tried, self._policy, self.state, unable)
        if not eligible.workers.ids:
            return None
        weights = self._weights
        if prompt.overlap_weight is not None:
            weights = applied(self.settings.weights, prompt.overlap_weight)
        question = self._question(prompt, eligible, weights)
        choice = choose(self._policy, question)
        shadow = None
        if self._shadow is not None:
            shadow = choose(self._shadow, question._replace(sticky=None)).instance
        if not tried:
            self._turn += 1
        places = self._shown(question, eligible.workers.place[choice.instance])
        candidates = eligible.candidates(places, weights if self._scores else None)
        decision = self._record(prompt, eligible, question, choice, shadow, candidates)
        self._count(prompt, decision, eligible.overlaps.get(choice.instance, 0))
        return decision

    def _question(self, prompt: Prompt, eligible: Eligible, weights: Mapping[str, float]) -> Question:
        workers, settings = eligible.workers, self.settings
        temperature = settings.temperature if prompt.temperature is None else prompt.temperature
        return Question(
            workers.ids,
            workers.requests,
            self._random,
            lambda: eligible.costs(weights, everywhere=temperature > 0),
            self._turn,
            temperature,
            self._sessions.get(prompt.session) if prompt.session else None,
        )

    def _record(
        self,
        prompt: Prompt,
        eligible: Eligible,
        question: Question,
        choice: Choice,
        shadow: int | None,
        candidates: tuple[Candidate, ...],
    ) -> Decision:
        settings, workers, tied = self.settings, eligible.workers, choice.tied
        left_out = len(workers.ids) - len(candidates)
        if left_out and tied:
            tied = tuple(sorted({one.instance for one in candidates}.intersection(tied)))
        excluded = eligible.excluded()
        return Decision(
            request=prompt.request,
            model=self.model,
            mode=settings.mode,
            at=self._wall(),
            tokens=prompt.tokens,
            block_size=self.block_size,
            candidates=candidates,
            chosen=choice.instance,
            rule=eligible.reason or choice.rule,
            tied=tied,
            excluded=excluded,
            weights=settings.weights if self._scores else None,
            overlap_weight=settings.overlap_weight if prompt.overlap_weight is None else prompt.overlap_weight,
            temperature=question.temperature,
            shadow=shadow,
            shadow_mode=settings.shadow_mode or "",
            left_out=left_out,
            more_excluded=len(self.state.columns.all.ids) - len(workers.ids) - len(excluded),
            most_overlap=eligible.most_overlap(choice.instance),
            pool=self.pool,
            notes=dict(prompt.notes),
        )

    def _shown(self, question: Question, place: int) -> Sequence[int]:
        """Places of the KEPT best candidates in their order, one of them the chosen one's."""
        if len(question.ids) <= KEPT:
            return range(len(question.ids))
        places = list(range(KEPT))
        if self._scores or self._policy.needs_load:
            ranks = question.costs() if self._scores else question.requests
            last = nsmallest(KEPT, ranks)[-1]
            near = [place for place, rank in enumerate(ranks) if rank <= last]
            places = sorted(near, key=ranks.__getitem__)[:KEPT]
        if place not in places:
            places[-1] = place
        return sorted(places)

    def started(self, key: Hashable, decision: Decision, prompt: Prompt) -> None:
        """The request is about to be sent where the decision says: it is load there from now on."""
        worker = decision.chosen
        if prompt.session:
            self._sessions[prompt.session] = worker
            self._sessions.move_to_end(prompt.session)
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        prefill = max(0, prompt.tokens - decision.present * self.block_size)
        self.state.active.start(key, worker, prompt.blocks, prefill, self.state.now())
        self.state.sent(worker, prompt.blocks)

    def prefill_completed(self, key: Hashable) -> None:
        """The request's first token has come."""
        self.state.active.prefill_completed(key)

    def finished(self, key: Hashable) -> None:
        """The request is over, or goes elsewhere."""
        self.state.active.finish(key)

    def statistics(self) -> RouterStatistics:
        """A snapshot."""
        index = self.state.index.statistics()
        return RouterStatistics(
            decisions=self._decisions,
            blocks=self._blocks,
            overlap=self._overlap,
            regret=self._regret,
            active=len(self.state.active),
            indexed_blocks=index.names,
            orphan_events=index.orphans,
            shadow_differs=self._shadow_differs,
        )

    def _count(self, prompt: Prompt, decision: Decision, overlap: int) -> None:
        self._decisions += 1
        self._blocks += len(prompt.blocks)
        self._overlap += overlap
        self._regret += decision.most_overlap - overlap
        self._shadow_differs += decision.shadow is not None and decision.shadow != decision.chosen
