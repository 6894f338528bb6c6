"""What a process reports of its components: states, roles, the phases of its start."""

from collections.abc import Callable

from dynamod.message.node import State


class Phases:
    """One phase follows another until `end`. `now`: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def begin(self, name: str) -> None:
        """A phase begins, and the one before ends. The phase that runs already continues."""
        if self._current is None or self._current[0] != name:
            self.end()
            self._current = name, self._now()

    def end(self) -> None:
        """The start is over."""
        if self._current is not None:
            name, since = self._current
            self._seconds[name] = self._seconds.get(name, 0.0) + self._now() - since
            self._current = None

    @property
    def current(self) -> str:
        """The phase that runs; empty when none does."""
        return self._current[0] if self._current is not None else ""

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase so far, in the order of their beginnings."""
        found = dict(self._seconds)
        if self._current is not None:
            name, since = self._current
            found[name] = found.get(name, 0.0) + self._now() - since
        return {name: round(value, 3) for name, value in found.items()}


class Reported:
    """`states`: of each component. `since`: when each component got its first state. `roles`: of workers.

    `details`: what each component does while it starts, or changes a role; the newest is the last one. `refusal`: why
    the daemon does not take the process. `now`: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.states: dict[str, str] = {}
        self.since: dict[str, float] = {}
        self.roles: dict[str, str] = {}
        self.details: dict[str, str] = {}
        self.refusal = ""
        self.phases = Phases(now)
        self.phases.begin("spawn")

    @property
    def detail(self) -> str:
        """What is to be said of the process; empty when there is nothing."""
        return self.refusal or next(reversed(self.details.values()), "")

    def take(self, said: State) -> None:
        """Take a report of one component; an empty state removes the component."""
        component = said.component
        self.details.pop(component, None)
        if said.state and said.detail:
            self.details[component] = said.detail
        if said.phase:
            self.phases.begin(said.phase)
        if said.role:
            self.roles[component] = said.role
        if said.state:
            self.states[component] = said.state
            self.since.setdefault(component, self._now())
        else:
            self.states.pop(component, None)
            self.since.pop(component, None)
        if "Starting" not in self.states.values():
            self.phases.end()
