"""Adapters that clients load and unload: told to all workers of a model, also to workers that lack them later."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from dynamod.ingress.parts import ProcessorContext, ProcessorPart
from dynamod.message.discovery import Adapter, Instance, ModelCard
from dynamod.message.errors import BadRequest, NotFound, Overloaded, RequestError, TimedOut
from dynamod.message.worker import LoadAdapter, UnloadAdapter
from dynamod.transport.items import ItemStream

from .changes import AdapterChange, AdapterChanges, AdapterRecord
from .shared import SharedAdapters

log = logging.getLogger("dynamod.frontend")

LOADING = 120.0
"""Seconds that a worker may take to load an adapter: its files are read, and a step may be computed before."""
KNOWN = 10.0
"""Seconds until what has been loaded can be asked for here."""


async def forgotten() -> None:
    """Keep no changes."""


class AdapterLoader(ProcessorPart):
    """`load` and `unload`, one change at a time.

    `changes`: what has been loaded and unloaded, here or elsewhere. A worker learns it when it starts. One that lacks
    an adapter all the same is told of it, and told again when it has had it meanwhile. `keep()` is awaited after each
    change of ours. `clock`: seconds of the epoch.
    """

    def __init__(
        self,
        context: ProcessorContext,
        keep: Callable[[], Awaitable[None]] = forgotten,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(context)
        self._view, self._transport = context.view, context.transport
        self._cards, self._spawn = context.cards, context.spawn
        self.changes, self._keep, self._clock = AdapterChanges(), keep, clock
        self._told: set[tuple[AdapterChange, int]] = set()  # with instances that lack it still
        self._lock = asyncio.Lock()
        context.watch(self._changed)
        self.changes.on_change(self._changed)
        self.changes.on_change(context.revise)

    async def prepare(self) -> None:
        """Learn what the processor before this one has left, and what others know; share what is known here."""
        if self.context.link is not None:
            shared = SharedAdapters(self.context.link, self.changes, self.context.component)
            self._keep = shared.keep
            await shared.join(self._spawn)

    def starting_card(self, card: ModelCard) -> ModelCard:
        """With the adapters of the settings and those of clients.

        An adapter of the settings that has been unloaded is left out as long as no worker has it.
        """
        found = {one.name: one for one in card.adapters}
        for change in self.changes.of(card.name):
            found.pop(change.adapter.name, None)
            if change.loaded:
                found[change.adapter.name] = change.adapter
        return msgspec.structs.replace(card, adapters=tuple(found.values()))

    async def load(self, base: str, adapter: Adapter, *, inplace: bool) -> None:
        """Load an adapter on all workers of a model. Where one cannot, the others are as they were before.

        Raises BadRequest (also for a name that is taken), NotFound, Overloaded, TimedOut; the text names the worker.
        """
        self._check_name(base, adapter.name, inplace)
        async with self.context.held(base), self._lock:
            self._check_name(base, adapter.name, inplace)
            instances = self._workers(base)
            cards = [self._view.card_of(adapter.name, one) for one in instances]
            before = [card.adapter if card is not None else None for card in cards]
            outcomes = await asyncio.gather(*[self._load(one, adapter, inplace) for one in instances])
            if wrong := [one for one in outcomes if isinstance(one, RequestError)]:
                rest = await self._undo(adapter.name, zip(instances, before, outcomes, strict=True))
                raise _reworded(wrong[0], "; not undone: ".join([str(wrong[0]), *rest]))
            done = [one for one in outcomes if isinstance(one, Adapter)]
            if len(digests := {one.digest for one in done}) > 1:
                log.warning("adapter %s is not the same on all workers of %s", adapter.name, base)
            await self._note(base, done[0], instances)
            await self._until(adapter.name, lambda card: card is not None and card.salt in digests)

    def _check_name(self, base: str, name: str, inplace: bool) -> None:
        there = self._cards().get(name)
        if name in self.context.reserved or (there is not None and there.parent != base):
            raise BadRequest(f"the name {name!r} is that of another model", param="lora_name")
        if there is not None and not inplace:
            text = f"the lora adapter {name!r} has already been loaded; load_inplace replaces it"
            raise BadRequest(text, param="lora_name")

    async def unload(self, card: ModelCard) -> None:
        """Have all workers of the model below an adapter forget it. `card`: that of the adapter. Raises as `load`."""
        assert card.adapter is not None
        async with self._lock:
            await self._note(card.base, card.adapter)
            found = await asyncio.gather(
                *[self._unload(one, card.name) for one in self._view.served(card.name).instances]
            )
            if wrong := [one for one in found if one is not None and not isinstance(one, NotFound)]:
                raise wrong[0]
            await self._until(card.name, lambda card: card is None)

    async def _note(self, base: str, adapter: Adapter, loaded_by: Iterable[Instance] = ()) -> None:
        """Let others know of a change; without workers that have loaded it, it is unloaded."""
        told = [one.instance_id for one in loaded_by]
        change = self.changes.next(base, adapter, self._clock(), loaded=bool(told))
        self._told.update((change, number) for number in told)
        self.changes.merge(AdapterRecord((change,)))
        await self._keep()

    async def _undo(
        self, name: str, workers: Iterable[tuple[Instance, Adapter | None, Adapter | RequestError]]
    ) -> list[str]:
        """Have workers be as before; returns why some are not.

        One that has said nothing may have changed, or may do it later. It is told to go back, and not waited for.
        """
        changed: list[tuple[Instance, Adapter | None]] = []
        for instance, before, outcome in workers:
            if isinstance(outcome, Adapter):
                if before is None or outcome.digest != before.digest:
                    changed.append((instance, before))
            elif not isinstance(outcome, BadRequest | NotFound):
                self._spawn(self._restore(instance, name, before), f"adapter {name} as it was")
        return [why for why in await asyncio.gather(*[self._undone(one, name, had) for one, had in changed]) if why]

    async def _undone(self, instance: Instance, name: str, before: Adapter | None) -> str:
        """`_restore`, until the ingress knows it: no later record of the worker makes the adapter appear for a moment.

        `instance` has changed. What it had then is awaited first: after that, the state before is its newest.
        """
        await self._known_of(instance, name, lambda digest: digest != _digest(before))
        if why := await self._restore(instance, name, before):
            return why
        await self._known_of(instance, name, lambda digest: digest == _digest(before))
        return ""

    async def _known_of(self, instance: Instance, name: str, holds: Callable[[str], bool]) -> None:
        """Wait until the view shows that about the adapter's digest at a worker, empty where it has none."""

        def shown() -> bool:
            card = self._view.card_of(name, instance)
            return holds(_digest(None if card is None else card.adapter))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KNOWN):
                await self._view.until(shown)

    async def _restore(self, instance: Instance, name: str, before: Adapter | None) -> str:
        """Have a worker be as before; returns why it is not."""
        if before is None:
            error = await self._unload(instance, name)
            return "" if error is None or isinstance(error, NotFound) else str(error)
        found = await self._load(instance, before, inplace=True)
        if isinstance(found, Adapter) and found.digest == before.digest:
            return ""
        return f"{_who(instance)}: {before.path} has changed" if isinstance(found, Adapter) else str(found)

    def _workers(self, base: str) -> Sequence[Instance]:
        card = self._cards().get(base)
        if card is None or not card.capabilities.lora:
            raise BadRequest(f"the engine of model {base!r} loads no LoRA adapters", param="model")
        if not (found := self._view.serving(base, card)):
            raise Overloaded(f"No instance of model {base!r} is ready.", retry_after=1.0)
        return found

    async def _load(self, instance: Instance, adapter: Adapter, inplace: bool) -> Adapter | RequestError:
        found = await self._ask(instance, LoadAdapter("load_adapter", adapter, inplace))
        return msgspec.json.decode(found[0], type=Adapter) if isinstance(found, list) else found

    async def _unload(self, instance: Instance, name: str) -> RequestError | None:
        found = await self._ask(instance, UnloadAdapter("unload_adapter", name))
        return None if isinstance(found, list) else found

    async def _ask(self, instance: Instance, request: LoadAdapter | UnloadAdapter) -> list[Any] | RequestError:
        """What a worker says to it, or the error with which it ended; both name the worker."""
        stream = ItemStream()
        outbound = self._transport.open(instance, request, stream)
        who = _who(instance)
        try:
            async with asyncio.timeout(LOADING):
                return [item async for item in _items(stream)]
        except TimeoutError:
            return TimedOut(f"{who} did not answer within {LOADING:g} s")
        except RequestError as error:
            return _reworded(error, f"{who}: {error}")
        finally:
            outbound.cancel()

    async def _until(self, name: str, holds: Callable[[ModelCard | None], bool]) -> None:
        """Wait until the change is known here, and requests follow it."""
        try:
            async with asyncio.timeout(KNOWN):
                await self._view.until(lambda: holds(self._cards().get(name)) and holds(self._view.card(name)))
        except TimeoutError:
            raise TimedOut(f"the workers have done it, and {name!r} is not known here after {KNOWN:g} s") from None

    def _changed(self) -> None:
        """A worker may lack what is to be loaded: it has started before that was known here, or could not load it."""
        before, self._told = self._told, set()
        for change in self.changes.loaded():
            having = self._view.served(change.adapter.name)
            for instance in self._view.served(change.model, self._cards().get(change.model)).instances:
                if having.get(instance.instance_id) is None:
                    key = change, instance.instance_id
                    self._told.add(key)
                    if key not in before:
                        self._spawn(self._load_later(instance, change), f"adapter {change.adapter.name}")

    async def _load_later(self, instance: Instance, change: AdapterChange) -> None:
        async with self._lock:
            if (change, instance.instance_id) not in self._told:
                return  # it is unloaded, or there, or the worker is gone
            found = await self._load(instance, change.adapter, inplace=False)
        if isinstance(found, RequestError):
            log.warning(
                "a worker of model %s goes without the adapter %s: %s", change.model, change.adapter.name, found
            )


def _digest(adapter: Adapter | None) -> str:
    return "" if adapter is None else adapter.digest


def _who(instance: Instance) -> str:
    return instance.process or f"{instance.instance_id:x}"


def _reworded(error: RequestError, text: str) -> RequestError:
    return type(error)(text, param=error.param, code=error.code, retry_after=error.retry_after)


async def _items(stream: ItemStream) -> Any:
    while items := await stream.read():
        for item in items:
            yield item
