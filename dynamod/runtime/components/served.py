"""How ingress processes publish which models can be asked for there."""

import msgspec

SERVED = "local/served/"
"""Keys: `local/served/{type}/{model}/{lease}`, of the ingress processes of this node."""


class ServedModel(msgspec.Struct, frozen=True):
    """One model behind one route of one ingress process."""

    type: str
    model: str
    namespace: str
    component: str
    endpoint: str
