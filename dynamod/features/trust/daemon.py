"""Trust in each daemon: it reads the secret, signs for the daemon, and tells its processes."""

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from dynamod.daemon.parts import DaemonPart
from dynamod.message.errors import UserError
from dynamod.transport.tls import mode_of

from .commands import SetTrustArguments, TrustState, Wrong
from .secret import MODE, SECRET, SECRET_FILE, TrustSettings, settings

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

    from .signer import TrustSigner

log = logging.getLogger("dynamod.daemon")

FEATURE = "trust"
SIGN_NOTHING = "the cluster secret is not used"
ALONE = "nodes do not know each other: everyone with access to NATS, etcd or nodes can send requests and add workers"


class TrustPart(DaemonPart):
    """`settings`: as they hold now. Without a secret nothing is signed, and no process hears of it."""

    def __init__(self, node: "Node") -> None:
        super().__init__(node)
        self.settings = settings(os.environ)
        self.signer: TrustSigner | None = None
        self._use()

    async def started(self) -> None:
        """Say once that a cluster has no secret, or does not use the secret."""
        if self.node.cluster.settings.found or not self._in_cluster:
            return
        if not self.settings.keys:
            log.warning("%s; set %s (see dynamo trust)", ALONE, SECRET_FILE)
        elif self.settings.mode == "off":
            log.warning("%s=off: %s, %s; dynamo trust set accept", MODE, SIGN_NOTHING, ALONE)

    @property
    def _in_cluster(self) -> bool:
        cluster = self.node.cluster.settings
        certificates = bool(cluster.tcp) and mode_of(cluster.tcp) == "require"
        return cluster.etcd is not None or bool(cluster.nats) or (bool(cluster.tcp) and not certificates)

    def _use(self) -> None:
        if self.signer is None and self.settings.keys:
            from .signer import TrustSigner

            self.signer = TrustSigner(self.node.name, self.settings)
        elif self.signer is not None:
            self.signer.use(self.settings)
        if self.signer is not None:
            self.node.cluster.signing.use(self.signer)

    def to_processes(self) -> dict[str, Any] | None:
        """The keys and the mode; see DaemonPart."""
        if self.signer is None:
            return None
        from .signer import said_of

        return said_of(self.node.name, self.settings)

    async def set(self, arguments: SetTrustArguments) -> TrustState:
        """Change the mode, or read the secret again. Raises UserError; nothing has changed then."""
        mode = arguments.mode or self.settings.mode
        if arguments.reread:
            found = await asyncio.to_thread(settings, {**os.environ, MODE: mode})
        elif mode != "off" and not self.settings.keys:
            raise UserError(f"{self.node.name} has no cluster secret", f"start its daemon with {SECRET_FILE}")
        else:
            found = self.settings._replace(mode=mode)
        if self.signer is not None and not found.keys:
            raise UserError("the secret is gone", "dynamo trust set off signs nothing any more")
        self._change(found)
        return self.state()

    def _change(self, found: TrustSettings) -> None:
        before, self.settings = self.settings, found
        self._use()
        if (said := self.to_processes()) is not None:
            self.node.link.say(FEATURE, said)
        digests = ", ".join(key.digest for key in found.keys)
        log.info("trust between nodes: mode %s (was %s), secrets %s", found.mode, before.mode, digests or "none")

    def state(self) -> TrustState:
        """What `dynamo trust` shows."""
        signer = self.signer
        counts = signer.statistics() if signer is not None else None
        wrong = sorted(signer.wrong.items()) if signer is not None else ()
        return TrustState(
            node=self.node.name,
            mode=self.settings.mode,
            digests=[key.digest for key in self.settings.keys],
            cluster=self._in_cluster,
            clock_s=self.settings.clock_s,
            signed=counts.signed if counts is not None else 0,
            proven=counts.proven if counts is not None else 0,
            doubted=counts.doubted if counts is not None else 0,
            refused=counts.refused if counts is not None else 0,
            wrong=[Wrong(node, why, count) for (node, why), count in wrong],
            source=next((name for name in (SECRET_FILE, SECRET) if os.environ.get(name)), ""),
        )

    def inspection(self) -> dict[str, Any]:
        """Mode and digests."""
        return {"mode": self.settings.mode, "digests": [key.digest for key in self.settings.keys]}
