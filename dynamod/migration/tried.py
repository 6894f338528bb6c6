"""Instances that a request does not go to any more, and those that it may try again for want of others."""

from collections.abc import Callable, Collection


class Tried:
    """`ids`: the set that a waiting message to the dispatcher has too; it is changed and never replaced."""

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
