"""Instances that a choice was sent to: which of them it avoids, and which sends count as tries."""

import asyncio
import contextlib
from collections.abc import Callable, Collection

from dynamod.message.errors import RequestError
from dynamod.router.placement import Placement

from .stages import Ask, Place

DOUBT_WAIT_S = 0.5
"""Seconds for which a request waits for an instance of another node, before neighbours of a lost one are asked too."""


class Tried:
    """`ids`: the avoided instances. A message that waits at the dispatcher holds this set, so it changes in place.

    `displaced`: how often the choice has left an instance for another request, which is no failure; `made_room`: those
    instances, to which it may come back. `refused`: how often an instance ended before it began with the choice.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.made_room: set[int] = set()
        self.sends = self.displaced = self.refused = 0
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

    def reconsider(self, available: Callable[[], bool]) -> None:
        """Without another instance neighbours may be tried, and then those to which only the link has failed."""
        if self._doubted and not available():
            self._trust()
        if self._unreached and not available():
            self.ids -= self._unreached
