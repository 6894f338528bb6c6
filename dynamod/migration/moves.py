"""Whether a choice moves to another instance, which ones it avoids, and what is counted and logged of its moves."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from time import perf_counter

from dynamod.message.discovery import Instance
from dynamod.message.errors import RequestError
from dynamod.observe.timeline import ACCEPTED, BROKE
from dynamod.router.placement import Placement

from .answer import Answer
from .attempt import Break
from .base import Choice, MigrationCounts, Places
from .decision import Broken, Verdict, decide
from .stages import Ask, Place

log = logging.getLogger("dynamod.migration")

DOUBT_WAIT_S = 0.5
"""Seconds for which a request waits for an instance of another node, before neighbours of a lost one are asked too."""
LINKS_WAIT_S = 5.0
"""Seconds for which an answer that has begun is sent again while the links to all instances fail: a broker restarts."""
LINKS_PAUSE_S = 0.25
"""Seconds before the instances are asked again meanwhile."""


class Tried:
    """Instances that a choice was sent to: which of them it avoids, and which sends count as tries.

    `ids`: the avoided instances. A message that waits at the dispatcher holds this set, so it changes in place.

    `displaced`: how often the choice has left an instance for another request, which is no failure; `made_room`: those
    instances, to which it may come back. `refused`: sends that are no tries: an instance ended before it began with the
    choice, or the links to all instances failed. `unheard`: sends of which only is known that the link failed.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.made_room: set[int] = set()
        self.sends = self.displaced = self.refused = self.unheard = 0
        self._asked = False  # a place was given once
        self._unreached: set[int] = set()  # it was sent to them, and they may live: the link has failed
        self._doubted: set[int] = set()  # it was not: the link to another instance of their node has failed

    @property
    def count(self) -> int:
        """Sends that count as tries."""
        return self.sends - self.refused

    def add(self, instance: int) -> None:
        """The request is sent there."""
        self.ids.add(instance)
        self._doubted.discard(instance)
        self.sends += 1

    def forget(self, instance: int, *, displaced: bool = False) -> None:
        """Nothing is wrong with the instance: the request may come back. `displaced`: it has not been tried, either."""
        self.ids.discard(instance)
        if displaced:
            self.sends -= 1
            self.displaced += 1
            self.made_room.add(instance)

    def link_lost(self, instance: int, neighbours: Collection[int]) -> None:
        """The link to an instance has failed. `neighbours`: instances on its node, which may be away as a whole."""
        self._unreached.add(instance)
        doubted = {*neighbours} - self.ids
        self._doubted |= doubted
        self.ids |= doubted

    async def placed(self, place: Place, received: int) -> Placement:
        """A place at an instance that is not avoided. `received`: as in `Ask`. Errors are those of `place`.

        Other nodes come first. A busy one must not keep the request from a neighbour, whose node may be there.
        """
        ask = Ask(self.ids, self._asked, received=received)
        found: Placement | None = None
        if self._doubted:
            with contextlib.suppress(TimeoutError, RequestError):
                async with asyncio.timeout(DOUBT_WAIT_S):
                    found = await place(ask)
            if found is None:
                self._trust()
        found = await place(ask) if found is None else found
        self._asked = True
        return found

    def _trust(self) -> None:
        self.ids -= self._doubted
        self._doubted.clear()

    def reconsider(self, available: Callable[[], bool]) -> bool:
        """Without another instance neighbours may be tried, and then those to which only the link has failed.

        Returns whether those are tried again.
        """
        if self._doubted and not available():
            self._trust()
        if not self._unreached or available():
            return False
        self.ids -= self._unreached
        return True

    def forgive(self) -> bool:
        """Sends of which only is known that the link failed are no tries; whether there were any."""
        unheard, self.unheard = self.unheard, 0
        self.refused += unheard
        return unheard > 0


class Moves:
    """The moves of one choice. `now`: seconds of a monotonic clock. `counts`: of all choices of the model."""

    def __init__(
        self,
        choice: Choice,
        places: Places,
        answer: Answer,
        tried: Tried,
        now: Callable[[], float],
        counts: MigrationCounts,
    ) -> None:
        self._choice, self._places, self._answer, self._tried = choice, places, answer, tried
        self._now, self._counts = now, counts
        self._broke_at: float | None = None  # until another instance has taken the request
        self._why = ""  # until it is sent to another instance

    def decide(self, broken: Break, *, accepted: bool) -> float:
        """Decide whether another instance gets the request. Raises the error to end with if none does.

        `accepted`: the instance that broke had taken it. Returns seconds to wait before it is sent.
        """
        self._choice.mark((BROKE, self._choice.index, perf_counter(), broken.why))
        if broken.displaced:
            self._why = broken.why
            return broken.pause
        answer, received = self._answer, self._answer.received
        if broken.link:
            lost = answer.placement.instance
            self._tried.link_lost(lost.instance_id, self._places.neighbours(lost))
            self._tried.unheard += not accepted
        pause = broken.pause
        if self.reconsider() and received and self._waits_for_links and self._tried.forgive():
            pause = max(pause, LINKS_PAUSE_S)
        unsent = broken.link and not accepted and not received  # as far as is known
        verdict = self._verdict(broken.why, retry=broken.retry or unsent)
        if received and self._choice.too_long(received):
            self._counts.too_long()
        if not verdict.again:
            raise verdict.exception()
        self._broke_at = answer.moved_at if self._broke_at is None else self._broke_at
        self._why = broken.why
        self._counts.broke(received > 0)
        return pause

    @property
    def _waits_for_links(self) -> bool:
        return self._broke_at is not None and self._now() - self._broke_at < LINKS_WAIT_S

    def _verdict(self, why: str, *, retry: bool) -> Verdict:
        choice, received = self._choice, self._answer.received
        others, form = self._available(), getattr(choice.request, "grammar", None) is not None
        long, sends = choice.too_long(received), self._tried.count
        return decide(Broken(why, retry, received, choice.exact, sends, choice.limit, others, long, form))

    def _available(self) -> bool:
        return self._places.available(self._tried.ids, self._answer.received)

    @property
    def possible(self) -> bool:
        """Whether another instance would get the request, if this one failed now."""
        return self._verdict("", retry=False).again

    @property
    def stays(self) -> bool:
        """Whether the answer has begun, and cannot be continued elsewhere."""
        received, choice = self._answer.received, self._choice
        return received > 0 and (not choice.exact or choice.too_long(received))

    def reconsider(self) -> bool:
        """Instances have gone: those to which only the link has failed are tried again when there is no other.

        Returns whether they are.
        """
        return self._tried.reconsider(self._available)

    def sent(self, call_soon: Callable[..., object]) -> None:
        """The request is sent. A line takes longer than a move, and many move at once: `call_soon` writes it."""
        if self._why:
            text = "request %s moves to another instance: %s"
            call_soon(log.warning, text, self._choice.request.request_id, self._why)
            self._why = ""

    def taken(self, instance: Instance | None) -> None:
        """An instance has accepted the request."""
        self._choice.mark((ACCEPTED, self._choice.index, perf_counter(), None))
        if self._broke_at is not None:
            seconds = self._settled(True)
            if instance is not None:
                where = instance.process or f"{instance.instance_id:x}"
                text = "request %s was taken by %s within %.1f ms"
                log.info(text, self._choice.request.request_id, where, seconds * 1000)

    def ended(self) -> None:
        """The choice is over."""
        if self._broke_at is not None:
            self._settled(False)
        if self._why:
            log.warning("request %s was sent to no other instance: %s", self._choice.request.request_id, self._why)

    def _settled(self, ok: bool) -> float:
        assert self._broke_at is not None
        seconds, self._broke_at = self._now() - self._broke_at, None
        self._counts.settled(seconds, ok)
        return seconds
