"""What a process says of its bounded structures."""

import msgspec


class Bounded(msgspec.Struct, frozen=True):
    """A structure that holds `count` of at most `bound` entries.

    `unit`: what is counted. `of`: which structure of several of one name, for instance the model.
    """

    name: str = ""
    of: str = ""
    count: int = 0
    bound: int = 0
    unit: str = "entries"
