"""Instances that a request avoids, and which of them it may try again when no other instance is left."""

from collections.abc import Callable, Collection


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

    def reconsider(self, available: Callable[[], bool]) -> None:
        """Without another instance neighbours may be tried, and then those to which only the link has failed."""
        if self._doubted and not available():
            self.ids -= self._doubted
            self._doubted.clear()
        if self._unreached and not available():
            self.ids -= self._unreached
