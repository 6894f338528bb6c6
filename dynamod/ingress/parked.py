"""Models that can be asked for although nobody serves them: a planner starts workers while requests wait for them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

from dynamod.discovery.records import decoded
from dynamod.discovery.view import View
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import Overloaded
from dynamod.message.pools import ParkedModel

log = logging.getLogger("dynamod.frontend")

GRACE = 30.0
"""Seconds for which a model stays although its planner has gone: another planner may take over."""


class ParkedModels:
    """`want(model, waits)`: publish that requests wait for a model, or that none does any more.

    `keep(card)`, `forget(name)`: from now on the model can be asked for, or only while somebody serves it.
    `coming(name)`: whether a worker comes without a planner; set by the owner that starts workers for requests.
    `changed()` is called when what planners say has changed.
    """

    def __init__(
        self,
        view: View,
        want: Callable[[str, bool], None],
        keep: Callable[[ModelCard], None],
        forget: Callable[[str], None],
    ) -> None:
        self._view, self._want, self._keep, self._forget = view, want, keep, forget
        self.coming: Callable[[str], bool] = lambda _name: False
        self.changed: Callable[[], None] = lambda: None
        self._records: dict[str, ParkedModel] = {}  # by key
        self._models: dict[str, ParkedModel] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Event()
        view.on_change(self._changed.set)

    def record(self, key: str, value: bytes | None) -> None:
        """What stands at a key of the registry now."""
        before = self._records.pop(key, None)
        if (record := decoded(key, value, ParkedModel)) is not None:
            self._records[key] = record
        for name in {one.card.name for one in (before, record) if one is not None}:
            self._revise(name)
        self._changed.set()
        self.changed()

    def _revise(self, name: str) -> None:
        found = next((one for one in self._records.values() if one.card.name == name), None)
        if found is not None:
            if (timer := self._leaving.pop(name, None)) is not None:
                timer.cancel()
            elif name not in self._models:
                self._keep(found.card)
            self._models[name] = found
        elif name in self._models and name not in self._leaving:
            self._leaving[name] = asyncio.get_running_loop().call_later(GRACE, self._left, name)

    def _left(self, name: str) -> None:
        del self._leaving[name], self._models[name]
        self._changed.set()
        self._forget(name)
        self.changed()

    def close(self) -> None:
        """Wait for no planner any more."""
        for timer in self._leaving.values():
            timer.cancel()

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def places(self, names: Collection[str]) -> set[str]:
        """Where these models are served, or will be when a request asks for them: dyn://..."""
        return {record.place for name, record in self._models.items() if name in names and not record.problem}

    def hopeful(self, name: str) -> bool:
        """Whether no planner says of the model that it can start no worker now."""
        record = self._models.get(name)
        return record is None or not record.problem

    def starts(self, card: ModelCard) -> bool:
        """Whether nobody serves the model, or that below an adapter, and a worker comes for those who wait."""
        record = self._models.get(card.base)
        if not self.coming(card.base) and (record is None or record.problem):
            return False
        return not self._view.served(card.base, None if card.parent else card, "").instances

    @contextmanager
    def wanted(self, name: str) -> Generator[None]:
        """Let the planner know meanwhile that a request waits for the model."""
        self._waiting[name] += 1
        if self._waiting[name] == 1:
            self._want(name, True)
        try:
            yield
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]
                self._want(name, False)

    async def served(self, card: ModelCard, pool: str, timeout: float | None) -> None:
        """Come back when somebody serves the model in this pool, at once where no planner starts workers for it.

        `timeout`: seconds. Raises Overloaded when nobody has come by then, or the planner says that nobody will.
        """
        name, now = card.name, asyncio.get_running_loop().time
        if name not in self._models or self._view.served(name, card, pool).instances:
            return
        since = now()
        try:
            async with asyncio.timeout(timeout):
                with self.wanted(name):
                    while not self._view.served(name, card, pool).instances:
                        if (record := self._models.get(name)) is None:
                            return  # nor does anybody start one
                        if record.problem:
                            why = f"model {name!r} has no workers, and none is started: {record.problem}"
                            raise Overloaded(why, retry_after=max(1.0, record.startup))
                        self._changed.clear()
                        await self._changed.wait()
        except TimeoutError:
            took, record = now() - since, self._models.get(name)
            why = f"no worker of model {name!r} was ready within {timeout:g} s"
            raise Overloaded(why, retry_after=max(1.0, record.startup - took if record is not None else 1.0)) from None
