"""The part of the feature in each daemon, with nothing heavy in a daemon without probes."""

import os
from typing import TYPE_CHECKING

from dynamod.actor import Reason
from dynamod.daemon.parts import DaemonPart

from .place import place

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

    from .probes import Probes


class KubernetesPart(DaemonPart):
    """`probes`: where DYNAMOD_PROBES names an address. Raises UserError for a wrong one."""

    def __init__(self, node: "Node") -> None:
        super().__init__(node)
        self._place = place(os.environ)
        self.probes: Probes | None = None

    async def started(self) -> None:
        """Listen. Raises UserError when the port is taken."""
        if self._place is not None:
            from .probes import Probes

            self.probes = Probes(self.node, *self._place)
            await self.probes.start()

    async def stopping(self, reason: Reason) -> None:
        """Close the port: a daemon that ends is not ready."""
        if self.probes is not None:
            await self.probes.stop()
