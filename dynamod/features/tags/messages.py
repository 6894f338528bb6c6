"""What clients send, what a config file says, and what a worker publishes."""

from typing import Annotated

import msgspec
from msgspec import Meta

ROUTES = "tag="
"""A tag that begins with this names a label."""

Tag = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._:/=-]+$(?!\n)")]
Label = Annotated[str, Meta(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9._:/-]+$(?!\n)")]
Labels = Annotated[list[Label], Meta(max_length=16)]


class TagFields(msgspec.Struct, frozen=True):
    """Members of `nvext`."""

    tags: Annotated[list[Tag], Meta(max_length=8)] | None = None


class TagSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a worker's section."""

    tags: Annotated[Labels, Meta(description="labels of the worker: requests with the tag tag=LABEL come here")] = []


class TagSection(msgspec.Struct, frozen=True):
    """The section of a worker's card."""

    labels: Labels = []
