"""When to restart a child: the supervisor's decision as a pure function of its state and one event.

`decide(policy, state, event, random) -> (state, effect)`; the supervisor performs the effect. Each child is
restarted on its own. Terms are OTP's: intensity, period, permanent, temporary.
"""

import random as random_module
from dataclasses import dataclass, replace
from typing import Literal

from .errors import Crashed, Reason

Restart = Literal["permanent", "temporary"]
"""Whether a child that ended, for whatever reason, is started again."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before the n-th restart in a row: `initial * factor**(n-1)` seconds, at most `maximum`, +- `jitter`.

    A child that stayed up for `reset_after` seconds starts again at the first delay.
    """

    initial: float = 0.1
    factor: float = 2.0
    maximum: float = 10.0
    jitter: float = 0.2
    reset_after: float = 30.0

    def delay(self, n: int, random: random_module.Random) -> float:
        """Seconds to wait before restart number `n` (from 1) in a row."""
        base = min(self.maximum, self.initial * self.factor ** min(n - 1, 64))
        return base * (1 + self.jitter * (2 * random.random() - 1))


@dataclass(frozen=True, slots=True)
class Policy:
    """How a supervisor reacts. More than `intensity` restarts within `period` seconds is the limit.

    At the limit the supervisor itself crashes (`escalate`), or, without, only the child is given up as Fatal; the
    limit is then counted for each child on its own, and a child that has been Ready is never given up.
    """

    intensity: int = 3
    period: float = 5.0
    escalate: bool = True


@dataclass(frozen=True, slots=True)
class Child:
    """What the decision knows of one child.

    `since`: when it last started; `crashes`: times within the period; `proven`: it has been Ready once.
    """

    name: str
    restart: Restart = "permanent"
    backoff: Backoff = Backoff()
    fatal: bool = False
    since: float = 0.0
    in_a_row: int = 0
    restarts: int = 0
    crashes: tuple[float, ...] = ()
    proven: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """Children in start order, and when restarts happened within the period."""

    children: tuple[Child, ...] = ()
    recent: tuple[float, ...] = ()

    def child(self, name: str) -> Child:
        """The child of that name. Raises KeyError."""
        for child in self.children:
            if child.name == name:
                return child
        raise KeyError(name)

    def with_child(self, new: Child) -> "State":
        """The state with `new` instead of the child of its name, or after all others."""
        if any(child.name == new.name for child in self.children):
            return replace(self, children=tuple(new if c.name == new.name else c for c in self.children))
        return replace(self, children=(*self.children, new))

    def without(self, name: str) -> "State":
        """The state without that child."""
        return replace(self, children=tuple(c for c in self.children if c.name != name))


@dataclass(frozen=True, slots=True)
class Died:
    """A running child ended at `now`. `ready`: it had started."""

    name: str
    reason: Reason
    now: float
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """What follows for the child: `restart` after `delay` seconds; `escalate`: the supervisor crashes."""

    action: Literal["restart", "remove", "fatal", "escalate"]
    delay: float = 0.0


def decide(policy: Policy, state: State, event: Died, random: random_module.Random) -> tuple[State, Effect]:
    """What follows from a child's death."""
    child = state.child(event.name)
    if child.restart == "temporary":
        return state.without(child.name), Effect("remove")
    horizon = event.now - policy.period
    crashes = (*(t for t in child.crashes if t > horizon), event.now)
    child = replace(child, crashes=crashes, proven=child.proven or event.ready)
    recent = (*(t for t in state.recent if t > horizon), event.now)
    # the error says itself that another start cannot help
    hopeless = isinstance(event.reason, Crashed) and getattr(event.reason.error, "permanent", False)
    if policy.escalate and len(recent) > policy.intensity:
        return state, Effect("escalate")
    if not policy.escalate and not child.proven and (hopeless or len(child.crashes) > policy.intensity):
        return state.with_child(replace(child, fatal=True)), Effect("fatal")
    in_a_row = 1 if event.now - child.since >= child.backoff.reset_after else child.in_a_row + 1
    child = replace(child, in_a_row=in_a_row, restarts=child.restarts + 1)
    return replace(state.with_child(child), recent=recent), Effect("restart", child.backoff.delay(in_a_row, random))


def started(state: State, name: str, now: float) -> State:
    """The state after the child was started."""
    return state.with_child(replace(state.child(name), since=now))
