"""What the decisions about models on demand are made of: states, actions, and what is known of each model."""

from dataclasses import dataclass, field
from typing import Literal

from .settings import ModelSettings

ModelState = Literal["unloaded", "loading", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class Start:
    """Run a worker of the model."""

    model: str


@dataclass(frozen=True, slots=True)
class Drain:
    """End the model's worker."""

    model: str


@dataclass(frozen=True, slots=True)
class Admit:
    """The request may be sent to its model."""

    request: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request ends: its model could not be loaded. `retry_after`: seconds until the next attempt."""

    request: str
    why: str
    retry_after: float


Action = Start | Drain | Admit | Refuse


@dataclass(slots=True)
class Model:
    """One model. Times are seconds on the clock of the events.

    `since`: when it came into its state. `waiting`: requests by arrival. `asked`: when an operator wanted it loaded
    without a request. `idle_since`: end of its last request. `keep`: seconds that it stays after that; None: forever.
    `turn`: requests that waited when it became ready, or came before those of the model that it `yields_to`; it takes
    no others then. `leaving`: it is unloaded after its running requests. `failures`: failed loads in a row; none is
    tried before `retry_at`. `took`: seconds of the last load. `memory`: bytes that it takes for the budget.
    """

    name: str
    settings: ModelSettings
    state: ModelState = "unloaded"
    since: float = 0.0
    waiting: dict[str, float] = field(default_factory=dict[str, float])
    running: set[str] = field(default_factory=set[str])
    asked: float | None = None
    idle_since: float = 0.0
    keep: float | None = None
    turn: set[str] = field(default_factory=set[str])
    yields_to: str = ""
    leaving: bool = False
    failures: int = 0
    retry_at: float = 0.0
    last_error: str = ""
    took: float | None = None
    memory: int = 0

    @property
    def wanted_since(self) -> float | None:
        """Time of the longest wait for its load; None: no request and no operator waits."""
        first = next(iter(self.waiting.values()), None)
        return min((one for one in (first, self.asked) if one is not None), default=None)

    @property
    def open(self) -> bool:
        """Whether it takes requests now."""
        return self.state == "ready" and not self.yields_to and not self.leaving

    def takes(self, request: str) -> bool:
        """Whether it takes this request now."""
        return self.open or (self.state == "ready" and not self.leaving and request in self.turn)

    @property
    def busy(self) -> bool:
        """Whether it works, or has not had its turn: `concurrency` may have some of it wait."""
        return bool(self.running) or next(iter(self.waiting), "") in self.turn

    @property
    def content(self) -> bool:
        """Whether no request waits for the load of the model."""
        return self.state != "unloaded" or self.wanted_since is None

    def expired(self, now: float) -> bool:
        """Whether it has been idle for as long as it may stay."""
        return self.open and not self.waiting and self.keep is not None and now - self.idle_since >= self.keep

    def enter(self, state: ModelState, now: float) -> None:
        """Come into a state; what held in the one before is over."""
        self.state, self.since = state, now
        self.yields_to, self.leaving = "", False
        self.turn.clear()
