"""Visitors may ask for the adapter `visitor` of each model that has no workers."""

import msgspec

from dynamod.ingress.parts import ProcessorContext, ProcessorPart
from dynamod.message.discovery import Adapter, ModelCard


class VisitsOfProcessor(ProcessorPart):
    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self.prepared = self.open = False

    async def prepare(self) -> None:
        self.prepared = True

    def admit(self) -> None:
        self.open = True
        self.context.revise()

    def starting_card(self, card: ModelCard) -> ModelCard:
        more = (Adapter("visitor", "/visitor"),) if self.open else ()
        return msgspec.structs.replace(card, adapters=(*card.adapters, *more))
