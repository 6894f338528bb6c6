"""One worker per session."""

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from .kv import KvCost

REMEMBERED = 10_000
"""Sessions whose worker is remembered until workers come or go; beyond that they are hashed again."""


class SessionAffinity(KvCost):
    """All requests of a session go to one worker as long as it lives; requests without a session go as with `kv`.

    The worker follows from the session's name and the live workers alone, so several ingress processes agree without
    talking to each other. Load is not looked at: an overloaded worker keeps its sessions, and while it is busy (above a
    threshold) their requests wait in the queue, or are refused when that is full.
    """

    def __init__(self) -> None:
        self._live: Sequence[int] = ()
        self._workers: dict[str, int] = {}

    def required(self, session: str, live: Sequence[int]) -> int | None:
        """The session's worker."""
        if not session:
            return None
        if live is not self._live or len(self._workers) >= REMEMBERED:
            self._live = live
            self._workers.clear()
        worker = self._workers.get(session)
        if worker is None:
            worker = self._workers[session] = rendezvous(session, live)
        return worker


def rendezvous(session: str, workers: Sequence[int]) -> int:
    """The worker whose hash with the session is highest: when one leaves, only its sessions move (Thaler 1998)."""
    name = session.encode()
    return max(workers, key=lambda worker: xxh3_64_intdigest(name, worker))
