"""Files of models for a frontend that has none: asked of a worker, checked, kept in a cache.

Where they are looked for, in order: the card's own path, if what lies there has its checksum; the cache; the workers
that serve the model, those on this node first. The processor does not come here for models of its own node.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import RequestError
from dynamod.message.worker import Files
from dynamod.preprocess.bundle import BundleError, ModelBundle
from dynamod.preprocess.model_files import is_here, verifiable
from dynamod.transport.base import Transport
from dynamod.transport.items import ItemStream

from .model_store import ModelCache

log = logging.getLogger("dynamod.frontend")

SILENCE = 30.0
"""Seconds without a new piece after which the next worker is asked."""
TOTAL = 600.0
"""Seconds that one worker may take in all."""
AGAIN = 0.5
MOST = 60.0
"""Seconds until all are asked again: at first, and at most. A worker that comes meanwhile is asked at once."""
LOOK = 0.1
"""Seconds between looks for new workers."""

Serving = Callable[[], Sequence[Instance]]


class ModelFiles:
    """`node()`: the name of this node."""

    def __init__(self, transport: Transport, node: Callable[[], str]) -> None:
        self._transport, self._node = transport, node
        self._cache = ModelCache()

    async def find(self, card: ModelCard, serving: Serving, wanted: Callable[[], bool]) -> ModelCard | None:
        """The card with paths that can be read here. Continues for as long as `wanted()`; then None.

        `serving()`: the instances that serve the model now. A card without a checksum is returned unchanged: without a
        checksum no file can be verified.
        """
        if not verifiable(card) or await asyncio.to_thread(is_here, card):
            return card
        found = await asyncio.to_thread(self._cache.find, card)
        if found is not None:
            log.info("using the cached tokenizer of model %s at %s", card.name, found.path)
        failures, pause = dict[int, str](), AGAIN
        while found is None and wanted():
            instances = sorted(serving(), key=lambda instance: instance.node != self._node())
            before = dict(failures)
            found = await self._ask(card, instances, failures)
            if found is not None:
                break
            if failures != before:  # not again and again
                why = "; ".join(sorted({failures[instance.instance_id] for instance in instances}))
                log.error(
                    "cannot serve model %s: it is not at %s on this machine, and no worker has sent its files (%s); "
                    "workers are asked again",
                    *(card.name, card.config_path or card.path or "any path", why),
                )
            await self._pause(pause, {instance.instance_id for instance in instances}, serving, wanted)
            pause = min(pause * 2, MOST)
        return found

    @staticmethod
    async def _pause(seconds: float, asked: set[int], serving: Serving, wanted: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(seconds):
                while wanted() and all(instance.instance_id in asked for instance in serving()):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            pass

    async def _ask(self, card: ModelCard, instances: Sequence[Instance], failures: dict[int, str]) -> ModelCard | None:
        """One worker after the other. `failures`: by instance, why it failed the last time."""
        for instance in instances:
            place, number = _name(instance), instance.instance_id
            try:
                files = await self._receive(card, instance, quiet=number in failures)
                return await asyncio.to_thread(self._cache.store, files, card)
            except BundleError as error:
                why = f"{place}: {error}"
                if failures.get(number) != why:
                    log.warning("the files of model %s from %s cannot be used: %s", card.name, place, error)
            except OSError as error:
                why = f"they cannot be written here: {error}"
            failures[number] = why
        return None

    async def _receive(self, card: ModelCard, instance: Instance, quiet: bool) -> dict[str, bytes]:
        """The files as one worker sends them. Raises BundleError when they do not come, or make no sense."""
        bundle, stream = ModelBundle(), ItemStream()
        outbound = self._transport.open(instance, Files(f"files-{card.mdc_sum[:12]}", TOTAL), stream)
        try:
            async with asyncio.timeout(TOTAL):
                while items := await _next(stream):
                    first = bundle.size is None
                    for item in items:
                        bundle.add(item)
                    if first:
                        level, size = logging.DEBUG if quiet else logging.INFO, (bundle.size or 0) / 1e6
                        message = "fetching the tokenizer of model %s from %s (%.1f MB)"
                        log.log(level, message, card.name, _name(instance), size)
        except TimeoutError:
            whole = bundle.size or "unknown"
            raise BundleError(f"it stopped sending after {bundle.received} of {whole} bytes") from None
        except RequestError as error:
            raise BundleError(str(error)) from None
        finally:
            outbound.cancel()
        return await asyncio.to_thread(bundle.files)


async def _next(stream: ItemStream) -> list[bytes]:
    async with asyncio.timeout(SILENCE):
        return await stream.read()


def _name(instance: Instance) -> str:
    """The worker as people know it."""
    node, process = instance.node or "this node", instance.process or f"dyn://{instance.path}"
    return f"{process} on {node}"
