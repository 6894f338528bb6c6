"""Clients of endpoints: calls to instances that are found in the registry, or to the one at a static address."""

import asyncio
import itertools
from collections.abc import Collection
from typing import Any, Self
from weakref import WeakSet

from dynamod.discovery.keys import CARDS, STATIC, Address, card_key, place_of
from dynamod.discovery.records import keep
from dynamod.engine.python.context import Context
from dynamod.engine.python.plain import plain
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import Overloaded
from dynamod.message.worker import Request
from dynamod.runtime.context import ProcessContext

from .builtin import request_for
from .endpoint_call import Annotated, Answers, CallOut, Pick

__all__ = ["Annotated", "Client"]

WAIT = 600.0
"""Seconds that `wait_for_instances` waits."""


class Client:
    """Instances of one endpoint. Every call gives an asynchronous iterator of `Annotated` items.

    `annotated=False` gives the payloads themselves; `context`: stopping it stops the call.
    """

    def __init__(self, process_context: ProcessContext, address: Address, *, static: bool) -> None:
        self._process_context, self._address, self._is_static = process_context, address, static
        self._static: dict[str, Instance] = {}
        self._cards: dict[str, ModelCard] = {}
        self._turn = itertools.count()
        self._calls: WeakSet[CallOut] = WeakSet()

    async def open(self) -> Self:
        """Look at the registry: its present instances are known when this returns."""
        process_context, place = self._process_context, place_of(self._address)
        if self._is_static:
            await process_context.caught_up(f"{STATIC}{place}/", keep(self._static, Instance))
        else:
            process_context.view.on_change(self._leave_quarantined)
            await process_context.caught_up(f"{CARDS}{place}/", keep(self._cards, ModelCard))
        return self

    def instance_ids(self) -> list[int]:
        """Ids of the instances that take calls now, in order."""
        view = self._process_context.view
        ready = view.instances(str(self._address)).values()
        return sorted(one.instance_id for one in ready if one.state == "ready" and not view.quarantined(one))

    async def wait_for_instances(self, timeout: float = WAIT) -> list[int]:
        """Wait for the first instance; returns the ids of all. Raises TimeoutError after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._process_context.view.until(self.instance_ids)
        except TimeoutError:
            raise TimeoutError(f"no instance of dyn://{self._address} within {timeout:g} s") from None
        return self.instance_ids()

    def random(self, request: Any = None, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call any instance."""

        def pick(tried: Collection[int]) -> Instance:
            return self._instance(self._process_context.system.random.choice(self._ready(tried)))

        return self._call(request, annotated, context, pick)

    generate = random

    def round_robin(self, request: Any = None, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call the next instance of this client."""

        def pick(tried: Collection[int]) -> Instance:
            ids = self._ready(tried)
            return self._instance(ids[next(self._turn) % len(ids)])

        return self._call(request, annotated, context, pick)

    def direct(self, request: Any, instance_id: int, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call one instance and no other."""

        def pick(_tried: Collection[int]) -> Instance:
            if instance_id not in self.instance_ids():
                known = ", ".join(map(str, self.instance_ids())) or "none"
                raise Overloaded(f"dyn://{self._address} has no instance {instance_id}; there are: {known}")
            return self._instance(instance_id)

        return self._call(request, annotated, context, pick, again=False)

    def static(self, request: Any = None, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call the worker at the static address."""

        def pick(tried: Collection[int]) -> Instance:
            here = [one for one in self._static.values() if one.instance_id not in tried]
            instance = here[0] if here else self._process_context.static_instance(self._address)
            if instance is None or instance.instance_id in tried:
                raise Overloaded(f"no static worker at dyn://{self._address}")
            return instance

        return self._call(request, annotated, context, pick)

    def _ready(self, tried: Collection[int]) -> list[int]:
        ids = [number for number in self.instance_ids() if number not in tried]
        if not ids:
            raise Overloaded(
                f"no instance of dyn://{self._address} is ready: await client.wait_for_instances() before"
                if not tried
                else f"no other instance of dyn://{self._address} is ready"
            )
        return ids

    def _instance(self, number: int) -> Instance:
        return self._process_context.view.instances(str(self._address))[number]

    def _call(
        self, request: Any, annotated: bool, context: Context | None, pick: Pick, *, again: bool = True
    ) -> Answers:
        context, payload = context if context is not None else Context(), plain(request)

        def request_to(instance: Instance) -> Request:
            return request_for(self._cards.get(card_key(instance)), context.id(), payload)

        call = CallOut(self._process_context.transport, request_to, pick, context, again=again)
        self._calls.add(call)
        return Answers(call, annotated)

    def _leave_quarantined(self) -> None:
        for call in list(self._calls):
            if call.instance is not None and self._process_context.view.quarantined(call.instance):
                call.lost("its process does not answer any more")
