"""Whether a choice moves to another instance, and what is counted and logged of its moves."""

import logging
from collections.abc import Callable
from time import perf_counter

from dynamod.message.discovery import Instance
from dynamod.observe.timeline import ACCEPTED, BROKE

from .answer import Answer
from .attempt import Break
from .base import Choice, MigrationCounts, Places
from .decision import Broken, Verdict, decide
from .tried import Tried

log = logging.getLogger("dynamod.migration")


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

    def decide(self, broken: Break, *, accepted: bool) -> None:
        """Decide whether another instance gets the request. Raises the error to end with if none does.

        `accepted`: the instance that broke had taken it.
        """
        self._choice.mark((BROKE, self._choice.index, perf_counter(), broken.why))
        if broken.displaced:
            self._why = broken.why
            return
        answer, received = self._answer, self._answer.received
        if broken.link:
            lost = answer.placement.instance
            self._tried.link_lost(lost.instance_id, self._places.neighbours(lost))
        self.reconsider()
        unsent = broken.link and not accepted and not received  # as far as is known
        verdict = self._verdict(broken.why, retry=broken.retry or unsent)
        if received and self._choice.too_long(received):
            self._counts.too_long()
        if not verdict.again:
            raise verdict.exception()
        self._broke_at = answer.moved_at if self._broke_at is None else self._broke_at
        self._why = broken.why
        self._counts.broke(received > 0)

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

    def reconsider(self) -> None:
        """Instances have gone: those to which only the link has failed are tried again when there is no other."""
        self._tried.reconsider(self._available)

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
