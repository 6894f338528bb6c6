"""The router of one model: what is known of its workers, and the decision for each request. No tasks, no clock.

The processor feeds it (`news`, `forget`), asks it (`decide`) and tells it what became of a request (`begin`,
`computed`, `end`). Everything here runs on the event loop of an ingress process, or in virtual time in a replay.
"""

import functools
import random as random_module
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import msgspec

from dynamod.kvcache.hashes import block_hashes as prompt_blocks
from dynamod.message.discovery import Instance
from dynamod.message.kv_events import (
    CacheEvent,
    Cleared,
    Load,
    PrefillCompleted,
    Removed,
    RequestFinished,
    RequestStarted,
    Snapshot,
    Stored,
    WorkerEvent,
)

from .active import ActiveLoad
from .approx import TTL, ApproxIndex
from .columns import NO_BOUND, Ask, Row, WorkerColumns, best_of
from .cost import Terms, Weights, total
from .decision import KEPT, Candidate, Decision
from .index import BlockIndex
from .policy import Choice, RouterMode, choose_among

__all__ = ["Prompt", "Router", "RouterSettings", "RouterStatistics", "prompt_blocks"]

SESSIONS = 10_000
"""Sessions whose last worker is remembered; the oldest are forgotten."""

CHANGED = 10_000
"""Changed workers that are remembered for the next decision among many; there may be none for a long time."""

_NOTHING = Load(0, 0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How to choose. `overlap_weight`: the original's `--kv-overlap-score-weight`. `ttl`: seconds, without events.

    A worker is busy, and gets nothing, above `busy_blocks` (share of its KV blocks in use) or `busy_prefill` (prompt
    tokens still to be computed there). When all are busy up to `queue_size` requests wait for one; more are refused.
    """

    mode: RouterMode = "round-robin"
    weights: Weights = Weights()
    overlap_weight: float = 1.0
    temperature: float = 0.0
    kv_events: bool = True
    ttl: float = TTL
    shadow_mode: RouterMode | None = None
    busy_blocks: float | None = None
    busy_prefill: float | None = None
    queue_size: int = 0

    @property
    def listens(self) -> bool:
        """Whether anything is made of what workers tell."""
        if self.busy_blocks is not None or self.busy_prefill is not None:
            return True
        return any(mode in ("kv", "least-loaded", "power-of-two") for mode in (self.mode, self.shadow_mode))

    @property
    def needs_blocks(self) -> bool:
        """Whether prompts must come with the hashes of their blocks."""
        return "kv" in (self.mode, self.shadow_mode)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What routing knows of a request. `blocks`: sequence hashes of its full blocks, empty when the mode needs none."""

    request: str
    tokens: int
    blocks: Sequence[int] = ()
    instance: int | None = None  # asked for by name
    overlap_weight: float | None = None
    temperature: float | None = None
    session: str = ""  # a hint: requests of one session belong together


class RouterStatistics(msgspec.Struct, frozen=True):
    """Decisions; prompt blocks, and those that the chosen worker had; locality given away; requests under way."""

    decisions: int
    blocks: int
    overlap: int
    regret: int
    active: int
    indexed_blocks: int
    orphan_events: int
    shadow_differs: int


@dataclass(slots=True)
class _Totals:
    decisions: int = 0
    blocks: int = 0
    overlap: int = 0
    regret: int = 0
    shadow_differs: int = 0


@dataclass(slots=True, eq=False)
class Router:
    """Decides for one model. `now`: monotonic seconds; `wall`: seconds since 1970, for records."""

    model: str
    block_size: int
    settings: RouterSettings
    random: random_module.Random
    now: Callable[[], float]
    wall: Callable[[], float]
    index: BlockIndex = field(default_factory=BlockIndex)
    approx: ApproxIndex = field(init=False)
    active: ActiveLoad = field(default_factory=ActiveLoad)
    loads: dict[int, Load] = field(default_factory=dict[int, Load])
    workers: set[int] = field(default_factory=set[int])  # those that are there, kept by who calls `forget`
    _turn: int = 0
    _sessions: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])
    _told: set[int] = field(default_factory=set[int])  # workers that tell events
    _totals: _Totals = field(default_factory=_Totals)
    _columns: WorkerColumns = field(init=False)

    def __post_init__(self) -> None:
        self.approx = ApproxIndex(self.settings.ttl)
        self._columns = WorkerColumns(self._row)

    # What is known.

    def news(self, worker: int, items: Sequence[WorkerEvent], anew: bool = False) -> None:
        """Words of a worker's feed, in order. `anew`: the first of a feed, which say how all stands there."""
        if anew:
            self.active.disown(worker)
        for item in items:
            if isinstance(item, Stored | Removed | Snapshot):
                self._cache(worker, item)
            elif isinstance(item, Cleared):
                self.index.remove_worker(worker)
                self.active.changed.add(worker)
            elif isinstance(item, RequestStarted):
                self.active.begin((worker, item.request), worker, item.blocks, item.prefill, self.now(), told=True)
            elif isinstance(item, PrefillCompleted):
                self.active.computed((worker, item.request))
            elif isinstance(item, RequestFinished):
                self.active.end((worker, item.request))
            else:
                before = self.loads.get(worker, _NOTHING)
                self.loads[worker] = item
                if item.total_blocks != before.total_blocks:
                    self.active.changed.add(worker)

    def forget(self, worker: int) -> None:
        """A worker is gone."""
        self.index.remove_worker(worker)
        self.approx.remove_worker(worker)
        self.active.drop(worker)
        self.loads.pop(worker, None)
        self._told.discard(worker)
        self.active.changed.add(worker)
        if len(self.active.changed) > CHANGED:
            self.active.changed.clear()
            self._columns = WorkerColumns(self._row)

    def _cache(self, worker: int, event: CacheEvent) -> None:
        if self.settings.kv_events:
            self._told.add(worker)
            self.index.apply(worker, event)
            self.active.changed.add(worker)

    # The decision.

    def decide(self, prompt: Prompt, instances: Sequence[Instance], tried: Collection[int] = ()) -> Decision | None:
        """The decision for a request among the instances of its model; None when none can take it.

        Among more than KEPT of them it reads columns that are kept up to date (`fleet`), with the same outcome; best
        give the same tuple as long as nothing has changed.
        """
        if len(instances) > KEPT and prompt.instance is None:
            return self._among_many(prompt, instances, tried)
        settings = self.settings
        ready: list[int] = []
        excluded: list[tuple[int, str]] = []
        for instance in instances:
            number = instance.instance_id
            if number in tried:
                excluded.append((number, "tried already"))
            elif instance.state != "ready":
                excluded.append((number, instance.state))
            elif prompt.instance is not None and number != prompt.instance:
                excluded.append((number, "another was asked for"))
            elif why := self.busy(number):
                excluded.append((number, why))
            else:
                ready.append(number)
        if not ready:
            return None
        ready.sort()  # the order in which they came must not matter, to chance neither
        weight = settings.overlap_weight if prompt.overlap_weight is None else prompt.overlap_weight
        candidates = self._candidates(prompt, ready, weight, self._overlaps(prompt.blocks, len(ready)))
        requests, totals = [one.requests for one in candidates], [one.total for one in candidates]
        choice, shadow = self._choose(prompt, ready, requests, totals)
        if not tried:
            self._turn += 1
        most = max([one.overlap for one in candidates])
        return self._decided(prompt, candidates, choice, shadow, excluded[:KEPT], 0, len(excluded), most)

    def _among_many(self, prompt: Prompt, instances: Sequence[Instance], tried: Collection[int]) -> Decision | None:
        columns, settings = self._columns, self.settings
        columns.follow(instances)
        columns.refresh(self.active.changed)
        self.active.changed.clear()
        out = {worker for worker in tried if worker in columns.place} | columns.busy
        if len(out) == len(columns.ids):
            return None
        ids, requests = columns.ids, columns.requests
        weight = settings.overlap_weight if prompt.overlap_weight is None else prompt.overlap_weight
        overlaps = self._overlaps(prompt.blocks, len(ids) - len(out))
        totals: list[float] = []
        if settings.needs_blocks:
            blocks = prompt.blocks
            ask = Ask(prompt.tokens / self.block_size, len(blocks) + 1, settings.weights, weight, out)
            totals = columns.totals(ask, overlaps)
            warm = (settings.temperature if prompt.temperature is None else prompt.temperature) > 0
            sharing = functools.partial(self.active.sharing, blocks)
            columns.share(totals, ask, overlaps, self.active.users(blocks), sharing, everybody=warm)
        if out:
            stay = [place for place, worker in enumerate(ids) if worker not in out]
            ids, requests = [ids[place] for place in stay], [requests[place] for place in stay]
            totals = [totals[place] for place in stay] if totals else totals
        choice, shadow = self._choose(prompt, ids, requests, totals)
        if not tried:
            self._turn += 1
        kept = best_of(ids, requests if settings.mode == "least-loaded" else totals, choice.instance)
        most = overlaps.get(choice.instance, 0)
        deeper = [worker for worker, depth in overlaps.items() if depth > most]
        most = max(
            [overlaps[worker] for worker in deeper if worker in columns.place and worker not in out], default=most
        )
        first = (worker for worker in tried if worker in columns.place)
        named = islice(chain(first, columns.unready, (worker for worker in columns.busy if worker not in tried)), KEPT)
        excluded = [(worker, self._why(worker, tried)) for worker in named]
        return self._decided(
            prompt,
            self._candidates(prompt, kept, weight, overlaps),
            choice,
            shadow,
            excluded,
            len(ids) - len(kept),
            len(out) + len(columns.unready),
            most,
        )

    def _why(self, worker: int, tried: Collection[int]) -> str:
        if worker in tried:
            return "tried already"
        return self._columns.unready.get(worker) or self.busy(worker)

    def _choose(
        self, prompt: Prompt, ids: Sequence[int], requests: Sequence[int], totals: Sequence[float]
    ) -> tuple[Choice, int | None]:
        settings = self.settings
        temperature = settings.temperature if prompt.temperature is None else prompt.temperature
        home = self._sessions.get(prompt.session) if prompt.session else None
        random, turn = self.random, self._turn
        choice = choose_among(settings.mode, ids, requests, totals, turn, random, temperature, home)
        if settings.shadow_mode is None:
            return choice, None
        shadow = choose_among(settings.shadow_mode, ids, requests, totals, turn, random, temperature)
        return choice, shadow.instance

    def _decided(
        self,
        prompt: Prompt,
        candidates: Sequence[Candidate],
        choice: Choice,
        shadow: int | None,
        excluded: Sequence[tuple[int, str]],
        left_out: int,
        all_excluded: int,
        most: int,
    ) -> Decision:
        settings, tied = self.settings, choice.tied
        if left_out and tied:
            within = {one.instance for one in candidates}.intersection(tied)
            tied = tuple(sorted(within))
        decision = Decision(
            request=prompt.request,
            model=self.model,
            mode=settings.mode,
            at=self.wall(),
            tokens=prompt.tokens,
            block_size=self.block_size,
            candidates=tuple(candidates),
            chosen=choice.instance,
            rule=choice.rule if prompt.instance is None else "asked for by its id",
            tied=tied,
            excluded=tuple(excluded),
            weights=settings.weights if settings.needs_blocks else None,
            overlap_weight=settings.overlap_weight if prompt.overlap_weight is None else prompt.overlap_weight,
            temperature=settings.temperature if prompt.temperature is None else prompt.temperature,
            shadow=shadow,
            shadow_mode=settings.shadow_mode or "",
            left_out=left_out,
            more_excluded=all_excluded - len(excluded),
            most_overlap=most,
        )
        self._count(prompt, decision)
        return decision

    def busy(self, worker: int) -> str:
        """Why a worker is to get nothing now; empty when it may."""
        settings = self.settings
        if settings.busy_blocks is None and settings.busy_prefill is None:
            return ""
        load = self.active.of(worker)
        room = self.loads.get(worker, _NOTHING).total_blocks
        if settings.busy_blocks is not None and room and load.blocks > settings.busy_blocks * room:
            return f"busy: {load.blocks} of {room} blocks in use"
        if settings.busy_prefill is not None and load.prefill > settings.busy_prefill:
            return f"busy: {load.prefill} prompt tokens to compute"
        return ""

    def begin(self, key: Hashable, decision: Decision, prompt: Prompt) -> None:
        """The request is about to be sent where the decision says: it is load there from now on."""
        worker = decision.chosen
        if prompt.session:
            self._sessions[prompt.session] = worker
            self._sessions.move_to_end(prompt.session)
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        prefill = max(0, prompt.tokens - decision.overlap * self.block_size)
        now = self.now()
        self.active.begin(key, worker, prompt.blocks, prefill, now)
        if worker not in self._told and prompt.blocks:
            self.approx.sent(worker, prompt.blocks, now)

    def computed(self, key: Hashable) -> None:
        """The request's first token has come."""
        self.active.computed(key)

    def end(self, key: Hashable) -> None:
        """The request is over, or goes elsewhere."""
        self.active.end(key)

    def expire(self) -> None:
        """Forget load that was never released, and guesses that are too old."""
        now = self.now()
        self.active.expire(now)
        self.approx.expire(now)

    def statistics(self) -> RouterStatistics:
        """A snapshot."""
        totals, index = self._totals, self.index.statistics()
        return RouterStatistics(
            decisions=totals.decisions,
            blocks=totals.blocks,
            overlap=totals.overlap,
            regret=totals.regret,
            active=len(self.active),
            indexed_blocks=index.names,
            orphan_events=index.orphans,
            shadow_differs=totals.shadow_differs,
        )

    def _overlaps(self, blocks: Sequence[int], ready: int) -> dict[int, int]:
        """How many of a prompt's blocks each worker has from the start, as it tells or as is guessed."""
        if not blocks:
            return {}
        told = self._told
        found = self.index.find(blocks) if told else {}
        if len(told) < ready:
            for worker, depth in self.approx.find(blocks, self.now()).items():
                if worker not in told:
                    found[worker] = depth
        return found

    def _candidates(
        self, prompt: Prompt, workers: Sequence[int], weight: float, overlaps: Mapping[int, int]
    ) -> list[Candidate]:
        blocks, size, kv = prompt.blocks, self.block_size, self.settings.needs_blocks
        sharing = self.active.sharing(blocks, workers)
        whole = len(blocks) + 1
        candidates: list[Candidate] = []
        for worker in workers:
            overlap = overlaps.get(worker, 0)
            load = self.active.of(worker)
            own = max(0.0, prompt.tokens / size - overlap)
            room = self.loads.get(worker, _NOTHING).total_blocks
            evicted = 0
            if room and worker in self._told:
                evicted = max(0, self.index.count(worker) + whole - overlap - room)
            terms = Terms(
                prefill=own,
                queued=load.prefill / size,
                active=load.blocks + whole - sharing.get(worker, 0),
                evicted=evicted,
                interference=own * load.requests,
            )
            score = total(terms, self.settings.weights, weight) if kv else 0.0
            candidates.append(Candidate(worker, overlap, load.requests, terms, score))
        return candidates

    def _row(self, worker: int) -> Row:
        """What `_candidates` reads of a worker, as far as no prompt is needed for it."""
        load = self.active.of(worker)
        room = self.loads.get(worker, _NOTHING).total_blocks
        above = self.index.count(worker) - room if room and worker in self._told else NO_BOUND
        queued = self.settings.weights.queued * (load.prefill / self.block_size)
        return Row(load.requests, queued, load.blocks, above, bool(self.busy(worker)))

    def _count(self, prompt: Prompt, decision: Decision) -> None:
        totals = self._totals
        totals.decisions += 1
        totals.blocks += len(prompt.blocks)
        totals.overlap += decision.overlap
        totals.regret += decision.regret
        totals.shadow_differs += decision.shadow is not None and decision.shadow != decision.chosen
