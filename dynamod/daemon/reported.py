"""What a process reports of its components: states, roles, the phases of its start."""

from collections.abc import Callable

from dynamod.message.node import State

from .phases import Phases


class Reported:
    """`states`: of each component. `since`: when each component got its first state. `roles`: of workers.

    `detail`: what the process does while it starts, or changes a role. `now`: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.states: dict[str, str] = {}
        self.since: dict[str, float] = {}
        self.roles: dict[str, str] = {}
        self.detail = ""
        self.phases = Phases(now)
        self.phases.begin("spawn")

    def take(self, said: State) -> None:
        """Take a report of one component; an empty state removes the component."""
        component = said.component
        self.detail = said.detail
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
