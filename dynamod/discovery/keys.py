"""Addresses and keys: `dyn://namespace.component.endpoint` and where things stand in the registry."""

import re
from dataclasses import dataclass
from typing import Self

from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError

INSTANCES = "v1/instances/"
CARDS = "v1/mdc/"
SHARED = "v1/"
"""Keys that nodes publish to each other begin so; all others stay in the node."""
OPERATOR_SETTINGS = "public/components/disagg_router/models/chat/"
"""Operators put settings here into etcd, by model: NVIDIA Dynamo's key. Nodes only read it."""
PARKED = "v1/parked/"
"""Models whose workers are started by a request for the model: `v1/parked/{lease in hex}/{component}`."""
WANTED = "v1/wanted/"
"""Models that requests wait for: `v1/wanted/{lease in hex}/{model}`."""
KEEPERS = "local/keepers/"
"""Processes that decide which models on demand are loaded: `local/keepers/{graph}/{lease in hex}`."""
STATIC = "local/static/"
"""Static workers of this node."""
STATIC_CARDS = "local/static_cards/"
"""What static workers of this node serve: for their daemon. Their frontends ask them."""
COMING = "local/coming/"
"""Cards of models that workers of this node are loading, for the frontends of this node: the key is that of a card."""
EXITED = "v1/exited/"
"""Leases whose process is known to be gone: `v1/exited/{lease in hex}`. A lease that only expired is not among them."""
QUARANTINED = "v1/quarantined/"
"""Leases whose process does not respond to its daemon: `v1/quarantined/{lease in hex}`. They keep their keys."""
SLOW = "v1/slow/"
"""Leases whose process makes progress, but far slower than usual: `v1/slow/{lease in hex}`."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/-]*")


@dataclass(frozen=True, slots=True)
class Address:
    """An endpoint's address. `str()` gives `namespace.component.endpoint`."""

    namespace: str = "dynamo"
    component: str = "backend"
    endpoint: str = "generate"

    def __str__(self) -> str:
        return f"{self.namespace}.{self.component}.{self.endpoint}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `dyn://ns.component.endpoint`; missing parts get the defaults, so `dyn://test` is namespace `test`.

        Raises UserError for empty or illegal parts, or more than three.
        """
        path = text.removeprefix("dyn://")
        parts = path.split(".")
        if not path or len(parts) > 3 or not all(_NAME.fullmatch(part) for part in parts):
            raise UserError(
                f"'{text}' is no address", "write dyn://namespace.component.endpoint with letters, digits, '_' and '-'"
            )
        return cls(*parts)


def instance_key(instance: Instance) -> str:
    """Key of an instance: `v1/instances/{namespace}/{component}/{endpoint}/{id in hex}`."""
    return f"{INSTANCES}{_place(instance)}"


def parked_key(lease: int, component: str) -> str:
    """Key of the model of a component that may have no workers."""
    return f"{PARKED}{lease:x}/{component}"


def wanted_key(lease: int, model: str) -> str:
    """Key that stands while requests wait for a model at an ingress process."""
    return f"{WANTED}{lease:x}/{model}"


def static_key(instance: Instance) -> str:
    """Key of a static worker."""
    return f"{STATIC}{_place(instance)}"


def static_card_key(instance: Instance) -> str:
    """Key of the model card of a static worker."""
    return f"{STATIC_CARDS}{_place(instance)}"


def card_key(instance: Instance) -> str:
    """Key of the model card that an instance published."""
    return f"{CARDS}{_place(instance)}"


def coming_key(instance: Instance) -> str:
    """Key of the model card that an instance will publish."""
    return f"{COMING}{_place(instance)}"


def exited_key(lease: int) -> str:
    """Key that says that the process of a lease is gone."""
    return f"{EXITED}{lease:x}"


def lease_of(key: str) -> int | None:
    """The lease that a key of `EXITED`, `QUARANTINED` or `SLOW` names; None for one that names none."""
    try:
        return int(key.rpartition("/")[2], 16)
    except ValueError:
        return None


def quarantine_key(lease: int) -> str:
    """Key that stands while the process of a lease is unresponsive."""
    return f"{QUARANTINED}{lease:x}"


def slow_key(lease: int) -> str:
    """Key that stands while the process of a lease is slow."""
    return f"{SLOW}{lease:x}"


def place_of(where: Address | Instance) -> str:
    """What the keys of all instances of an endpoint have in common: `{namespace}/{component}/{endpoint}`."""
    endpoint = where.endpoint.replace("/", "%2F")  # NVIDIA Dynamo has an endpoint called chat/completions
    return f"{where.namespace}/{where.component}/{endpoint}"


def _place(instance: Instance) -> str:
    return f"{place_of(instance)}/{instance.instance_id:x}"
