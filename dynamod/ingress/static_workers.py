"""Static workers: at a known address, without a registry between.

They publish no model card. The frontend is configured with the model's name and files. Kind, block size and
capabilities it asks the worker itself, again and again, because that also shows whether the worker is there.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from dynamod.discovery.view import View
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import RequestError
from dynamod.message.worker import Describe
from dynamod.preprocess.model_files import is_here
from dynamod.transport.base import Transport
from dynamod.transport.items import ItemStream

log = logging.getLogger("dynamod.frontend")

EVERY = 1.0
"""Seconds between two looks at a static worker."""
MISSED = 3
"""Looks without an answer after which it is gone."""

_card = msgspec.json.Decoder(ModelCard)


async def describe(transport: Transport, instance: Instance, timeout: float = 2.0) -> ModelCard | None:
    """Ask a worker for its card; None when it does not answer in time, or cannot be reached."""
    stream = ItemStream()
    outbound = transport.open(instance, Describe("describe"), stream)
    try:
        async with asyncio.timeout(timeout):
            items = await stream.read()
        return _card.decode(items[0]) if items else None
    except msgspec.MsgspecError as error:
        log.warning("a static worker sent a broken model card: %s", error)
        return None
    except (TimeoutError, RequestError):
        return None
    finally:
        outbound.cancel()


class StaticWorkers:
    """Follows instances that publish no card.

    `instances()`: the possible instances. `card`: what this process knows of the model.
    """

    def __init__(
        self, view: View, transport: Transport, card: ModelCard, instances: Callable[[], Sequence[Instance]]
    ) -> None:
        self._view, self._transport, self._card, self._instances = view, transport, card, instances
        self._there: dict[int, tuple[Instance, int]] = {}  # with looks since the last answer
        self._cards: dict[int, ModelCard] = {}  # as they were said last

    async def run(self) -> None:
        """Look forever."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Ask each instance. Offer the models of instances that answer, withdraw the models of the others."""
        instances = {instance.instance_id: instance for instance in self._instances()}
        for number in self._there.keys() - instances.keys():
            self._gone(number)
        cards = await asyncio.gather(*(describe(self._transport, instance) for instance in instances.values()))
        for instance, card in zip(instances.values(), cards, strict=True):
            number = instance.instance_id
            if card is not None:
                new = number not in self._there
                self._there[number] = (instance, 0)
                if new:
                    log.info("found the static worker at dyn://%s (engine %s)", instance.path, card.engine)
                    await self._compare(instance, card)
                    self._view.place(instance, True)
                if card != self._cards.get(number):  # it has other adapters
                    self._cards[number] = card
                    self._offer(instance, card)
            elif number in self._there:
                missed = self._there[number][1] + 1
                self._there[number] = (instance, missed)
                if missed >= MISSED:
                    self._gone(number)

    async def _compare(self, instance: Instance, card: ModelCard) -> None:
        """Warn when it has other files than we. A shorter context is no difference: the shorter one counts."""
        here = self._card
        if card.kind != "tokens" or card.mdc_sum == here.mdc_sum:
            return
        as_there = msgspec.structs.replace(card, path=here.path, config_path=here.config_path)
        if not await asyncio.to_thread(is_here, as_there):
            log.warning(
                "the model files of %s differ from the files of the worker at dyn://%s: tokenizer and template must be "
                "the same, or the answers make no sense",
                *(here.path, instance.path),
            )

    def _offer(self, instance: Instance, card: ModelCard) -> None:
        here = self._card
        self._view.offer(
            instance,
            msgspec.structs.replace(
                card,
                name=here.name,
                path=here.path,
                config_path=here.config_path,
                mdc_sum=here.mdc_sum,
                context_length=min(filter(None, (card.context_length, here.context_length)), default=0),
            ),
        )

    def _gone(self, number: int) -> None:
        self._cards.pop(number, None)
        found = self._there.pop(number, None)
        if found is not None:
            instance, _ = found
            log.warning("the static worker at dyn://%s is gone", instance.path)
            self._view.offer(instance, None)
            self._view.place(instance, False)
