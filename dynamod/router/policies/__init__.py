"""The routing policies by the names people type. A policy's module is imported at its first use."""

import importlib
from typing import TYPE_CHECKING

from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from .base import Policy

POLICIES = {
    "round-robin": f"{__name__}.round_robin:RoundRobin",
    "random": f"{__name__}.random_choice:RandomChoice",
    "kv": f"{__name__}.kv:KvCost",
    "least-loaded": f"{__name__}.least_loaded:LeastLoaded",
    "power-of-two": f"{__name__}.power_of_two:PowerOfTwo",
    "direct": f"{__name__}.direct:Direct",
    "session-affinity": f"{__name__}.session_affinity:SessionAffinity",
}
"""Name -> module and class."""

NAMES = tuple(POLICIES)


def mode_of(text: str) -> str:
    """The policy's own name for what was typed (`round_robin` too). Raises UserError that lists the known ones."""
    name = text.replace("_", "-").lower()
    if name not in POLICIES:
        raise UserError(f"unknown router mode '{text}'", f"known modes: {', '.join(NAMES)}")
    return name


def policy_class(name: str) -> "type[Policy]":
    """The class for a name of NAMES."""
    module, _, attribute = POLICIES[name].partition(":")
    found: type[Policy] = getattr(importlib.import_module(module), attribute)
    return found
