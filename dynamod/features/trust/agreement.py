"""What nodes have to agree in: the secret, and the mode."""

from typing import TYPE_CHECKING

from dynamod.features.cluster.facts import Fact

from .control import part_of

if TYPE_CHECKING:
    from dynamod.daemon.node import Node


def _secret(node: "Node") -> str:
    digests = [key.digest for key in part_of(node).settings.keys]
    return " and ".join(sorted(digests)) or "none"


def _mode(node: "Node") -> str:
    return part_of(node).settings.mode


FACTS = (
    Fact(
        "cluster secret", _secret, True, "cluster secret differs", "give all nodes the same DYNAMOD_CLUSTER_SECRET_FILE"
    ),
    Fact("trust", _mode, False, "mode of trust differs", "see dynamo trust set"),
)
