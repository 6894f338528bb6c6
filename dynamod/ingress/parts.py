"""Parts of a processor: what features keep in it, beside models and requests."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.view import View
from dynamod.extension.installed import enabled
from dynamod.message.discovery import ModelCard
from dynamod.transport.base import Spawn, Transport


@dataclass(frozen=True, slots=True)
class ProcessorContext:
    """What a part is given of its processor.

    `cards()`: models that a request may name, by name. `reserved`: names of models that may come. `spawn` starts a task
    of the processor. `held(model)`: within the block a model has a worker, if a worker can be started; raises
    Overloaded. `revise()`: to be called when `starting_card` of the part gives another card. `link`: the connection to
    the daemon, None in a processor without a daemon; `component`: the processor's name there.
    """

    view: View
    transport: Transport
    cards: Callable[[], Mapping[str, ModelCard]]
    spawn: Spawn
    held: Callable[[str], AbstractAsyncContextManager[None]]
    revise: Callable[[], None]
    reserved: Collection[str] = ()
    link: LinkRegistry | None = None
    component: str = ""


class ProcessorPart:
    """What a feature keeps in each processor; endpoints find it in `Backend.parts` by the feature's name."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context

    async def prepare(self) -> None:
        """Awaited before the first request comes."""

    def starting_card(self, card: ModelCard) -> ModelCard:
        """The card that a new worker would publish. `card`: as the settings of the worker say it."""
        return card


def make_parts(context: ProcessorContext) -> dict[str, ProcessorPart]:
    """A part for each feature that is on, by the feature's name."""
    return {one.name: one.processor(context) for one in enabled() if one.processor is not None}
