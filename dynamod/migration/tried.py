"""Instances that a request avoids, and which of them it may try again when no other instance is left."""

import asyncio
import contextlib
from collections.abc import Callable, Collection

from dynamod.message.errors import RequestError
from dynamod.router.placement import Placement

from .stages import Ask, Place

DOUBT_WAIT_S = 0.5
"""Seconds for which a request waits for an instance of another node, before neighbours of a lost one are asked too."""


class Tried:
    """`ids`: the avoided instances. A message that waits at the dispatcher holds this set, so it changes in place."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._unreached: set[int] = set()  # it was sent to them, and they may live: the link has failed
        self._doubted: set[int] = set()  # it was not: the link to another instance of their node has failed

    def add(self, instance: int) -> None:
        """The request is sent there."""
        self.ids.add(instance)
        self._doubted.discard(instance)

    def forget(self, instance: int) -> None:
        """Nothing is wrong with the instance: the request may come back."""
        self.ids.discard(instance)

    def link_lost(self, instance: int, neighbours: Collection[int]) -> None:
        """The link to an instance has failed. `neighbours`: instances on its node, which may be away as a whole."""
        self._unreached.add(instance)
        doubted = {*neighbours} - self.ids
        self._doubted |= doubted
        self.ids |= doubted

    async def placed(self, place: Place, ask: Ask) -> Placement:
        """A place at an instance that is not avoided. Errors are those of `place`.

        Other nodes come first. A busy one must not keep the request from a neighbour, whose node may be there.
        """
        if self._doubted:
            with contextlib.suppress(TimeoutError, RequestError):
                async with asyncio.timeout(DOUBT_WAIT_S):
                    return await place(ask)
            self._trust()
        return await place(ask)

    def _trust(self) -> None:
        self.ids -= self._doubted
        self._doubted.clear()

    def reconsider(self, available: Callable[[], bool]) -> None:
        """Without another instance neighbours may be tried, and then those to which only the link has failed."""
        if self._doubted and not available():
            self._trust()
        if self._unreached and not available():
            self.ids -= self._unreached
