"""When to restart what: the supervisor's decision as a pure function of its state and one event.

`decide(policy, state, event, random) -> (state, effects)`. The supervisor performs the effects: stops in the order
given, then starts in the order given after the delay. Terms are OTP's: strategy, intensity, period, permanent,
transient, temporary.
"""

import random as random_module
from dataclasses import dataclass, field, replace
from typing import Literal

from .errors import Crashed, Normal, Reason

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
Restart = Literal["permanent", "transient", "temporary"]


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
    limit is then counted for each child by itself.
    """

    strategy: Strategy = "one_for_one"
    intensity: int = 3
    period: float = 5.0
    escalate: bool = True


@dataclass(frozen=True, slots=True)
class Child:
    """What the decision knows of one child."""

    name: str
    restart: Restart = "permanent"
    backoff: Backoff = Backoff()
    up: bool = True
    fatal: bool = False
    since: float = 0.0
    in_a_row: int = 0
    restarts: int = 0
    crashes: tuple[float, ...] = ()


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
        """The state with `new` in place of the child of its name, or behind all others."""
        if any(child.name == new.name for child in self.children):
            return replace(self, children=tuple(new if c.name == new.name else c for c in self.children))
        return replace(self, children=(*self.children, new))

    def without(self, name: str) -> "State":
        """The state without that child."""
        return replace(self, children=tuple(c for c in self.children if c.name != name))


@dataclass(frozen=True, slots=True)
class Died:
    """A running child ended at `now`."""

    name: str
    reason: Reason
    now: float


@dataclass(frozen=True, slots=True)
class Effects:
    """What to do, in this order. `give_up`: the limit is passed, the supervisor crashes."""

    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    delay: float = 0.0
    removed: tuple[str, ...] = field(default=())
    fatal: str | None = None
    give_up: bool = False


def decide(policy: Policy, state: State, event: Died, random: random_module.Random) -> tuple[State, Effects]:
    """What follows from a child's death."""
    child = state.child(event.name)
    state = state.with_child(replace(child, up=False))
    if child.restart == "temporary" or (child.restart == "transient" and isinstance(event.reason, Normal)):
        return state.without(child.name), Effects(removed=(child.name,))

    horizon = event.now - policy.period
    crashes = (*(t for t in child.crashes if t > horizon), event.now)
    recent = (*(t for t in state.recent if t > horizon), event.now)
    hopeless = isinstance(event.reason, Crashed) and getattr(event.reason.error, "permanent", False)
    if hopeless and not policy.escalate:  # the error says itself that another start cannot help
        return state.with_child(replace(child, up=False, fatal=True, crashes=crashes)), Effects(fatal=child.name)
    if len(recent if policy.escalate else crashes) > policy.intensity:
        if policy.escalate:
            return state, Effects(give_up=True)
        return state.with_child(replace(child, up=False, fatal=True, crashes=crashes)), Effects(fatal=child.name)

    in_a_row = 1 if event.now - child.since >= child.backoff.reset_after else child.in_a_row + 1
    names = [c.name for c in state.children if not c.fatal]
    position = names.index(child.name)
    group = {"one_for_one": [child.name], "one_for_all": names, "rest_for_one": names[position:]}[policy.strategy]
    stop = tuple(name for name in reversed(group) if state.child(name).up)
    for name in group:
        member = state.child(name)
        state = state.with_child(replace(member, up=False, restarts=member.restarts + 1))
    state = state.with_child(replace(state.child(child.name), in_a_row=in_a_row, crashes=crashes))
    delay = child.backoff.delay(in_a_row, random)
    return replace(state, recent=recent), Effects(stop=stop, start=tuple(group), delay=delay)


def started(state: State, name: str, now: float) -> State:
    """The state after the child came up."""
    return state.with_child(replace(state.child(name), up=True, since=now))
