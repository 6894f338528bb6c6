"""How ingress processes tell which models can be asked for there."""

import msgspec

SERVED = "v1/served/"
"""Keys: `v1/served/{type}/{model}/{lease}`."""


class ServedModel(msgspec.Struct, frozen=True):
    """One model behind one route of one ingress process."""

    type: str
    model: str
    namespace: str
    component: str
    endpoint: str
