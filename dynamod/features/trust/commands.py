"""The commands of the control socket that tell of trust between nodes, and change it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dynamod.extension.command import Command, NoArguments


class Wrong(msgspec.Struct, frozen=True):
    """How often something of a node was not right. `node`: as its signature says; empty where it has none.

    `why`: unsigned, damaged, stranger (another secret), forged, clock, or replayed.
    """

    node: str = ""
    why: str = ""
    count: int = 0


class TrustState(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon of a node says of its secrets.

    `mode`: off, accept or require. `digests`: of its secrets, the one that signs first; a digest does not reveal the
    secret. `cluster`: the node is in a cluster. `signed`, `proven`, `doubted`, `refused`: counts of the daemon, for the
    registry and for commands. `wrong`: since the mode was set. `source`: the variable with the secret.
    """

    node: str = ""
    mode: str = "off"
    digests: list[str] = []
    cluster: bool = False
    clock_s: float = 0.0
    signed: int = 0
    proven: int = 0
    doubted: int = 0
    refused: int = 0
    wrong: list[Wrong] = []
    source: str = ""


class SetTrustArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mode`: empty: the present one. `reread`: read the file with the secret again."""

    mode: Annotated[Literal["", "off", "accept", "require"], Meta(description="one of: off, accept, require")] = ""
    reread: bool = False


TRUST = Command("trust", NoArguments, TrustState, "The secrets and the mode of this node, and what was not right.")
SET_TRUST = Command(
    "set_trust",
    SetTrustArguments,
    TrustState,
    "Change the mode of this node until its daemon ends, or read the secret again.",
    changes=True,
    subject="mode",
    seconds=10.0,
    own_node=True,
)
