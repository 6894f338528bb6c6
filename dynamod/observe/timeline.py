"""When a request has come where on its way, and where its time went.

The ingress notes a mark where something begins or ends. Times are seconds of `perf_counter`. `phases` gives every
moment between the arrival and the last byte to one phase, so the sum of the phases is the whole time.
"""

from collections import deque
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

MARKS = 512
"""Marks that a request keeps, the last ones."""
CHOICES = 64
"""Choices of a request that make marks, the first ones."""

ASKED = "asked"
"""A choice asks for a place. `about`: None."""
PLACED = "placed"
"""A choice has a place. `about`: instance, decision, and seconds that the decision took."""
PREFILL_ASKED = "prefill_asked"
"""The prompt may be computed elsewhere: a place is asked for. `about`: None."""
PREFILL_PLACED = "prefill_placed"
"""A prefill worker gets the prompt. `about`: as of PLACED."""
HANDED = "handed"
"""The prefill worker has given the hand-off. `about`: None."""
RELEASED = "released"
"""The prefill worker has no more to do with the prompt. `about`: None."""
SENT = "sent"
"""The request goes to its worker. `about`: the `message.discovery.Instance`."""
ACCEPTED = "accepted"
"""The worker has taken it. `about`: None."""
FIRST = "first"
"""The first tokens of this attempt are here. `about`: None."""
BROKE = "broke"
"""The attempt has ended before the answer. `about`: why."""
FINISHED = "finished"
"""The choice is over. `about`: None."""

PHASES = (
    *("receive", "queue", "preprocess", "route", "handoff", "transport", "prefill", "first_token"),
    *("decode", "migrations", "write"),
)
"""Names of the phases, in the order of a request that nothing disturbs."""

Mark = tuple[str, int, float, Any]
"""What, the choice, when, and what it is about."""

NOWHERE = deque[Mark](maxlen=0).append
"""Takes marks and keeps none."""


class Timeline(msgspec.Struct, eq=False):
    """The marks of one request to an engine. A time of 0.0: the request has not come there.

    `arrived`: its first byte. `begun`: its header. `read`: its body. `turn`: its turn to be worked on. `checked`: it is
    in order, and the processor has it. `lowering`, `lowered`: its prompts are being made, and are there.
    `first_write`: the first bytes of a stream go out. `ended`: the last bytes have gone out. `trace`: what a
    feature keeps of the request, None: nothing; its `stage` is a `migration.stages.MakeStage`.
    """

    begun: float
    arrived: float
    read: float = 0.0
    turn: float = 0.0
    checked: float = 0.0
    lowering: float = 0.0
    lowered: float = 0.0
    first_write: float = 0.0
    ended: float = 0.0
    marks: deque[Mark] = msgspec.field(default_factory=partial(deque, maxlen=MARKS))
    trace: Any = None

    def phases(self) -> dict[str, float]:
        """Seconds by phase, those of 0 too. Of several choices the one that ended last counts.

        Of a request that is being served: until now.
        """
        return _Shares(self).found


class _Shares:
    """Gives the time of a timeline to phases, from mark to mark."""

    def __init__(self, timeline: Timeline) -> None:
        self.found = dict.fromkeys(PHASES, 0.0)
        self._at = timeline.arrived
        end = timeline.ended or perf_counter()
        before = (("receive", timeline.read), ("queue", timeline.turn), ("preprocess", timeline.checked))
        for phase, until in (*before, ("queue", timeline.lowering), ("preprocess", timeline.lowered)):
            self._give(phase, until)
        choice = last_choice(timeline)
        phase = "preprocess" if timeline.checked else "receive"
        moved = begun = False  # an attempt has broken before; tokens have come in this one
        for what, index, at, about in timeline.marks:
            if index != choice:
                continue
            if what == ASKED:
                self._give("migrations" if moved else phase, at)
                phase = "queue"
            elif what == PLACED:
                took = about[2]
                self._give("migrations" if moved else phase, at - took)
                self._give("migrations" if moved else "route", at)
                phase, begun = "transport", False
            elif what in (PREFILL_ASKED, PREFILL_PLACED, HANDED):
                self._give("migrations" if moved else "handoff", at)
            elif what == SENT:
                self._give("migrations" if moved else phase, at)
                phase = "transport"
            elif what == ACCEPTED:
                self._give("migrations" if moved else phase, at)
                phase = "prefill" if not begun else phase
            elif what == FIRST and not begun:
                self._give("migrations" if moved else phase, at)
                if not moved:
                    self._give("first_token", timeline.first_write)
                begun, moved, phase = True, False, "decode"
            elif what == BROKE:
                self._give("decode" if begun else "migrations", at)
                moved = True
            elif what == FINISHED:
                self._give("migrations" if moved else phase, at)
                phase = "write"
        self._give(phase, end)

    def _give(self, phase: str, until: float) -> None:
        """The time until then is of this phase. Marks of the past give nothing."""
        if until > self._at:
            self.found[phase] += until - self._at
            self._at = until


def last_choice(timeline: Timeline) -> int:
    """The choice that ended last, or has not ended; 0 without marks."""
    ended = {index: at for what, index, at, _ in timeline.marks if what == FINISHED}
    for _, index, _, _ in timeline.marks:
        if index not in ended:
            return index
    return max(ended, key=ended.__getitem__, default=0)
