"""The workers that may take a request, and what the request would meet at each of them."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import chain, islice, repeat
from types import MappingProxyType
from typing import Protocol

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import RequestError
from dynamod.message.worker import REPLAY

from .cost import Sending, Workers, sending, terms_of, totals
from .decision import KEPT, Candidate
from .policies.base import Policy, overload_bound
from .state import WorkerState

ALL_ABLE: Mapping[int, str] = MappingProxyType({})
"""No worker is unable to answer."""
FEW = 100
"""Workers for which it is cheaper to count the blocks in use than to find out whether that matters."""


class Need(Protocol):
    """What a request asks of the workers that compute it."""

    def lacks(self, card: ModelCard) -> str:
        """Why the worker with this card cannot compute the request; "" for a worker that can."""
        ...

    def unmet(self, cards: Sequence[ModelCard]) -> RequestError:
        """The error for the client when no live worker can. `cards`: of these workers."""
        ...


def lacks(needs: Iterable[Need], card: ModelCard | None) -> str:
    """What the worker with this card lacks first; "" for a worker that lacks nothing."""
    return next((why for need in needs if (why := need.lacks(card))), "") if card is not None else ""


class Prompt(msgspec.Struct, frozen=True):
    """What routing knows of a request. `blocks`: sequence hashes of its full blocks, empty when the mode needs none.

    `needs`: only workers that lack nothing of these take it. `notes`: for the record of the decision.
    """

    request: str
    tokens: int
    blocks: Sequence[int] = ()
    instance: int | None = None  # asked for by its id
    overlap_weight: float | None = None
    temperature: float | None = None
    session: str = ""  # requests of one session belong together
    form: tuple[str, ...] | None = None  # words of the form of its answer; None: it has none
    needs: Sequence[Need] = ()
    notes: Mapping[str, str] = {}

    def form_words(self, received: int) -> tuple[str, ...] | None:
        """What a worker must know of forms to take it, when so much of its answer has come; None: nothing."""
        return self.form if self.form is None or not received else (*self.form, REPLAY)


class Eligible:
    """The workers that may take a request: all except `tried`, busy and `unable` workers (the value is the reason); one
    worker alone where the request must go to that worker.

    `workers`: the remaining workers, possibly none. `overlaps`: by worker, how many blocks of the prompt it has;
    `fetches`: the blocks after these that it would load. `reason`: why only one worker may take it.
    """

    def __init__(
        self,
        prompt: Prompt,
        tried: Collection[int],
        policy: Policy,
        state: WorkerState,
        unable: Mapping[int, str] = ALL_ABLE,
    ) -> None:
        self._unable = unable
        tried = {*tried, *unable} if unable else tried
        self._prompt, self._tried, self._state = prompt, tried, state
        columns = state.columns
        self._out: Collection[int] = columns.busy
        if tried:
            self._out = columns.busy.union(worker for worker in tried if worker in columns.all.place)
        self._only, self.reason = self._required(policy)
        self.workers = columns.without(self._out) if self._only is None else self._one(self._only)
        self.overlaps = state.overlaps(prompt.blocks)
        self.fetches = state.fetches(prompt.blocks, self.overlaps)
        self._sending: Sending | None = None  # to all workers, with all blocks in use counted
        self._costs: list[float] | None = None

    def costs(self, weights: Mapping[str, float], *, everywhere: bool) -> list[float]:
        """What the request costs at each worker, by weights that are `cost.applied`; counted once.

        Blocks that others use too lower a cost, and take long to count. Where many workers use blocks of the prompt
        they are counted for those alone which that can bring among the KEPT best, unless they must be `everywhere`.
        """
        if self._costs is not None:
            return self._costs
        users = self._state.active.users(self._prompt.blocks)
        if everywhere or len(users) <= FEW:
            self._sending = self._sent_to(self.workers, users)
            self._costs = totals(self._sending, weights)
            return self._costs
        found = self._sent_to(self.workers, ())
        costs = self._costs = totals(found, weights)
        ids, bound = self.workers.ids, self._bound(costs) + weights["active"] * found.whole
        near = [place for place, cost in enumerate(costs) if cost <= bound and ids[place] in users]
        workers = self.workers.at(near)
        for place, cost in zip(near, totals(self._sent_to(workers, workers.ids), weights), strict=True):
            costs[place] = cost
        return costs

    def candidates(self, places: Sequence[int], weights: Mapping[str, float] | None) -> tuple[Candidate, ...]:
        """Records of the workers at some places, with their costs by these weights; None: without costs."""
        whole = len(places) == len(self.workers.ids)
        workers = self.workers if whole else self.workers.at(places)
        ids, requests, overlaps = workers.ids, workers.requests, self.overlaps
        if weights is None:
            return tuple(map(Candidate, ids, [overlaps.get(worker, 0) for worker in ids], requests))
        found, costs = self._sending, self._costs
        if not whole or found is None or costs is None:
            found = self._sent_to(workers, ids)
            costs = totals(found, weights)
        return tuple(map(Candidate, ids, found.overlap, requests, costs, terms_of(found), found.fetched or repeat(0)))

    def excluded(self) -> tuple[tuple[int, str], ...]:
        """At most KEPT of the excluded workers, each with the reason."""
        if self._only is None and not self._out:
            return ()
        return tuple((worker, self._why(worker)) for worker in islice(self._others(), KEPT))

    def most_overlap(self, chosen: int) -> int:
        """The most blocks of the prompt that any of the workers has; `chosen` is one of them."""
        if not self.overlaps:
            return 0
        most = self.overlaps.get(chosen, 0)
        if most == max(self.overlaps.values()):  # as it mostly is, and quickly found
            return most
        deeper = [(depth, worker) for worker, depth in self.overlaps.items() if depth > most]
        return max([depth for depth, worker in deeper if worker in self.workers.place], default=most)

    def _sent_to(self, workers: Workers, users: Iterable[int]) -> Sending:
        """`users`: workers whose blocks of the prompt in use are counted."""
        prompt, state = self._prompt, self._state
        shared = state.active.sharing(prompt.blocks, users)
        blocks, whole = prompt.tokens / state.block_size, len(prompt.blocks) + 1
        return sending(workers, blocks, whole, self.overlaps, shared, self.fetches)

    def _bound(self, costs: Sequence[float]) -> float:
        """A cost that KEPT of the workers that are not overloaded do not exceed."""
        requests = self.workers.requests
        most = overload_bound(requests)
        if max(requests) > most:
            costs = [cost for cost, count in zip(costs, requests, strict=True) if count <= most]
        return nsmallest(KEPT, costs)[-1] if len(costs) >= KEPT else math.inf

    def _required(self, policy: Policy) -> tuple[int | None, str]:
        prompt, live = self._prompt, self._state.columns.all.ids
        if prompt.instance is not None:
            return prompt.instance, "asked for by its id"
        if not prompt.session or not live:
            return None, ""
        if self._tried:
            live = [worker for worker in live if worker not in self._tried]
        worker = policy.required(prompt.session, live) if live else None
        return worker, "the session's worker" if worker is not None else ""

    def _one(self, worker: int) -> Workers:
        columns = self._state.columns
        free = worker in columns.all.place and worker not in self._out
        return columns.all.at((columns.all.place[worker],) if free else ())

    def _others(self) -> Iterator[int]:
        columns = self._state.columns
        if self._only is not None:
            return (worker for worker in columns.all.ids if worker != self._only)
        tried = [worker for worker in self._tried if worker in columns.all.place]
        return chain(tried, (worker for worker in columns.busy if worker not in tried))

    def _why(self, worker: int) -> str:
        if worker in self._unable:
            return self._unable[worker]
        if worker in self._tried:
            return "tried already"
        if self._only is None:
            return self._state.busy(worker)
        return "another was asked for" if self._prompt.instance is not None else "not the session's worker"
