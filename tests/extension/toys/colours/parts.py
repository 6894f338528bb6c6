"""The section of a worker's card, and what a request needs of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dynamod.ingress.base import Job, ResponseSink, Run
from dynamod.ingress.parts import Begin, ProcessorPart
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, RequestError
from dynamod.worker.parts import WorkerPart


class Section(msgspec.Struct, frozen=True):
    colour: str = "grey"


@dataclass(frozen=True, slots=True)
class Needs:
    colour: str

    def lacks(self, card: ModelCard) -> str:
        return "" if card.section("colours", Section).colour == self.colour else f"is not {self.colour}"

    def unmet(self, cards: Sequence[ModelCard]) -> RequestError:
        return BadRequest(f"no worker is {self.colour}", param="nvext.colour")


class ColouredRequests(ProcessorPart):
    async def start(self, job: Job, sink: ResponseSink, begin: Begin) -> Run:
        if (colour := getattr(job.request.nvext, "colour", None)) is None:
            return await begin(job, sink)
        job.notes["colour"] = colour
        return await begin(msgspec.structs.replace(job, needs=(*job.needs, Needs(colour))), sink)


class ColouredWorker(WorkerPart):
    def section(self) -> Section | None:
        settings = self.context.settings
        return Section(settings.colour) if settings is not None else None
