"""How ingress processes publish which models can be asked for there."""

import msgspec

SERVED = "local/served/"
"""Keys: `local/served/{type}/{model}/{lease}`, of the ingress processes of this node."""


UNSERVED = "local/unserved/"
"""Keys: `local/unserved/{model}/{lease}`, of ingress processes to which the files of a model are of no use."""


class UnservedModel(msgspec.Struct, frozen=True):
    """A model that an ingress process cannot serve, and why, in one line."""

    model: str
    why: str


class ServedModel(msgspec.Struct, frozen=True):
    """One model at one route of one ingress process."""

    type: str
    model: str
    namespace: str
    component: str
    endpoint: str
