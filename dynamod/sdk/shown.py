"""What `ps` shows of the endpoints of a Python file."""

import asyncio
from collections.abc import Callable

from dynamod.discovery.keys import Address
from dynamod.discovery.link import LinkRegistry
from dynamod.message.node import State


class Shown:
    """`states`: of each endpoint that is served. `serves`: set from the first endpoint on."""

    def __init__(self, registry: Callable[[], LinkRegistry]) -> None:
        self._registry = registry
        self.states: dict[Address, str] = {}
        self.serves = asyncio.Event()

    def show(self, address: Address, state: str) -> None:
        """Set the state of an endpoint. A component is Ready if all its endpoints are. An empty state removes one."""
        self.states.pop(address, None)
        if state:
            self.serves.set()
            self.states[address] = state
        self._tell(address.component)

    def prepare(self, component: str, doing: str) -> None:
        """Show what a component without endpoints does; empty: nothing more."""
        if all(address.component != component for address in self.states):
            self._registry().send(State(component, "Starting" if doing else "", doing))

    def tell_all(self) -> None:
        """Report all states to another daemon."""
        for component in {address.component for address in self.states}:
            self._tell(component)

    def _tell(self, component: str) -> None:
        states = [state for address, state in self.states.items() if address.component == component]
        other = [state for state in states if state != "Ready"]
        self._registry().send(State(component, (other or states or [""])[0]))
