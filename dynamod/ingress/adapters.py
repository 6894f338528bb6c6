"""Adapters that clients load and unload: told to all workers of a model, also to those that come later."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from dynamod.discovery.view import View
from dynamod.message.discovery import Adapter, Instance, ModelCard
from dynamod.message.errors import BadRequest, NotFound, Overloaded, RequestError, TimedOut
from dynamod.message.worker import LoadAdapter, UnloadAdapter
from dynamod.transport.base import Transport
from dynamod.transport.items import ItemStream

log = logging.getLogger("dynamod.frontend")

LOADING = 120.0
"""Seconds that a worker may take to load an adapter: its files are read, and a step may be computed before."""
KNOWN = 10.0
"""Seconds until what has been loaded can be asked for here."""

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]
Cards = Callable[[], Mapping[str, ModelCard]]


class AdapterLoader:
    """`load` and `unload`, one change at a time. `cards()`: of the models that can be asked for here, by name.

    What has been loaded here is remembered for as long as this process lives: a worker that comes later gets it too.
    """

    def __init__(self, view: View, transport: Transport, cards: Cards, spawn: Spawn) -> None:
        self._view, self._transport, self._cards, self._spawn = view, transport, cards, spawn
        self._loaded: dict[str, tuple[str, Adapter]] = {}  # by name: the model below it
        self._tried: set[tuple[int, str]] = set()  # instances that were told of an adapter by its name
        self._lock = asyncio.Lock()
        view.on_change(self._changed)

    async def load(self, base: str, adapter: Adapter, *, inplace: bool) -> None:
        """Load an adapter on all workers of a model. Where one cannot, those that have loaded it forget it.

        Raises BadRequest (also for a name that is taken), NotFound, Overloaded, TimedOut.
        """
        async with self._lock:
            there = self._cards().get(adapter.name)
            if there is not None and there.parent != base:
                raise BadRequest(f"the name {adapter.name!r} is that of another model", param="lora_name")
            if there is not None and not inplace:
                text = f"the lora adapter {adapter.name!r} has already been loaded; load_inplace replaces it"
                raise BadRequest(text, param="lora_name")
            instances = self._workers(base)
            found = await asyncio.gather(*[self._load(one, adapter, inplace) for one in instances])
            if wrong := [one for one in found if isinstance(one, RequestError)]:
                if there is None:
                    done = [one for one, what in zip(instances, found, strict=True) if isinstance(what, Adapter)]
                    await asyncio.gather(*[self._unload(one, adapter.name) for one in done])
                raise wrong[0]
            self._loaded[adapter.name] = base, adapter
            self._tried.update((one.instance_id, adapter.name) for one in instances)
            self._changed()  # some may have come meanwhile
            digests = {one.digest for one in found if isinstance(one, Adapter)}
            if len(digests) > 1:
                log.warning("adapter %s is not the same on all workers of %s", adapter.name, base)
            await self._until(adapter.name, lambda card: card is not None and card.salt in digests)

    async def unload(self, card: ModelCard) -> None:
        """Have all workers of the model below an adapter forget it. `card`: that of the adapter. Raises as `load`."""
        async with self._lock:
            self._loaded.pop(card.name, None)
            self._tried = {one for one in self._tried if one[1] != card.name}
            instances = list(self._view.served(card.name).instances)
            found = await asyncio.gather(*[self._unload(one, card.name) for one in instances])
            if wrong := [one for one in found if isinstance(one, RequestError) and not isinstance(one, NotFound)]:
                raise wrong[0]
            await self._until(card.name, lambda card: card is None)

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
        who = instance.process or f"{instance.instance_id:x}"
        try:
            async with asyncio.timeout(LOADING):
                return [item async for item in _items(stream)]
        except TimeoutError:
            return TimedOut(f"{who} did not answer within {LOADING:g} s")
        except RequestError as error:
            return type(error)(f"{who}: {error}", param=error.param, code=error.code)
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
        """A worker may have come that lacks what has been loaded here."""
        for name, (base, adapter) in self._loaded.items():
            for instance in self._view.serving(base, self._cards().get(base)):
                key = instance.instance_id, name
                if key not in self._tried and self._view.served(name).get(instance.instance_id) is None:
                    self._tried.add(key)
                    self._spawn(self._load_later(instance, base, adapter), f"adapter {name}")

    async def _load_later(self, instance: Instance, base: str, adapter: Adapter) -> None:
        async with self._lock:
            if self._loaded.get(adapter.name) != (base, adapter):
                return
            found = await self._load(instance, adapter, inplace=False)
        if isinstance(found, RequestError):
            log.warning("a worker of model %s goes without the adapter %s: %s", base, adapter.name, found)


async def _items(stream: ItemStream) -> Any:
    while items := await stream.read():
        for item in items:
            yield item
