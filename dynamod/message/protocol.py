"""The number of what daemons, commands, processes, nodes and kept files of dynamod say to each other.

Releases with one number work together. A change that an older release would misread raises the number, and the reader
migrates what the number before has written. Fields that older releases can skip do not raise it.
"""

PROTOCOL = 2
"""1: releases before 0.2.0, which do not say it."""
OLDEST_NODE = 1
"""The oldest protocol of other nodes that this release works with in one cluster."""


def works_with(protocol: int, since: int) -> bool:
    """Whether this release and another node can ask each other. `since`: the other node's `OLDEST_NODE`."""
    return protocol >= OLDEST_NODE and since <= PROTOCOL
