"""A toy whose requests name a colour in `nvext`, and go to workers of that colour."""

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from dynamod.ingress.parts import ProcessorContext


class Fields(msgspec.Struct, frozen=True):
    colour: Annotated[str, Meta(min_length=1, max_length=8)] | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    colour: str = ""


def _processor(context: "ProcessorContext") -> object:
    from .parts import ColouredRequests

    return ColouredRequests(context)


def _worker() -> type:
    from .parts import ColouredWorker

    return ColouredWorker


FEATURE = Feature(
    "colours",
    "a toy: nvext.colour",
    settings={"worker": Settings},
    nvext=Fields,
    processor=_processor,
    worker=_worker,
)
