"""What signs for a process, and judges what other nodes say."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from dynamod.observe.bounded import bounded
from dynamod.transport.signing import VALUE, Bytes, NotTrusted, Proof, SigningStatistics

from . import signature as codec
from .nonces import Nonces
from .secret import Key, TrustSettings

log = logging.getLogger("dynamod.transport")

SAY_EVERY_S = 60.0
"""Seconds before the same line is logged again."""
MOST_NAMES = 256
"""Nodes whose signatures were wrong and that are remembered by their names."""
UNSIGNED, DAMAGED, STRANGER, FORGED, CLOCK, REPLAYED = "unsigned", "damaged", "stranger", "forged", "clock", "replayed"
"""Why something is not taken: no signature; no readable one; one with another secret; a wrong one; the clocks differ;
it was taken already."""
WHAT = {VALUE: "a value of the registry"}


class TrustSigner:
    """See `transport.signing.Signer`. `node`: the name of this node. `now`: seconds since the epoch.

    `wrong`: by node and reason, how often something was not right; the name of a node is what a signature says.
    """

    def __init__(
        self,
        node: str,
        settings: TrustSettings,
        now: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._node, self._now, self._random = node, now, random
        self.settings = settings
        self._nonces = Nonces(settings.clock_s)
        self._time = 0  # of the last signature
        self._signed = self._proven = self._doubted = self._refused = 0
        self.wrong: dict[tuple[str, str], int] = {}
        self._said: dict[tuple[str, str], float] = {}
        bounded(self, "nodes with wrong signatures", MOST_NAMES, lambda one: len(one.wrong), "nodes")

    def use(self, settings: TrustSettings) -> None:
        """Judge by other settings from now on; what was taken once stays taken."""
        if settings.clock_s != self.settings.clock_s:
            self._nonces = Nonces(settings.clock_s)
        if settings.mode != self.settings.mode:
            self.wrong.clear()
            self._said.clear()
        self.settings = settings

    def sign(self, what: str, *parts: Bytes) -> bytes:
        """The signature of some parts by the first secret; empty in the mode off."""
        if self.settings.mode == "off":
            return b""
        first = self.settings.keys[0]
        self._time = max(int(self._now() * 1e6), self._time + 1)
        self._signed += 1
        signed = codec.Signed(self._node, self._time, self._random(codec.NONCE), first.digest)
        return codec.encode(first.key, signed, what, parts)

    def check(self, what: str, signature: bytes, *parts: Bytes) -> Proof:
        """The node that signed the parts; none for what is only counted. Raises NotTrusted in the mode require."""
        if self.settings.mode == "off":
            return Proof()
        if not signature:
            return self._object(what, UNSIGNED, "", "it is not signed")
        try:
            signed, head, mac = codec.decode(signature)
        except codec.SignatureError as error:
            return self._object(what, DAMAGED, "", str(error))
        key = next((one for one in self.settings.keys if one.digest == signed.digest), None)
        if key is None:
            here = " and ".join(one.digest for one in self.settings.keys)
            why = f"node {signed.node} signs with another secret (digest {signed.digest}, here {here})"
            return self._object(what, STRANGER, signed.node, f"{why}: give all nodes the same secret")
        if not codec.equal(mac, codec.mac(key.key, head, what, parts)):
            return self._object(what, FORGED, signed.node, f"the signature of node {signed.node} does not fit it")
        if what != VALUE and (problem := self._problem(signed)):
            return self._object(what, problem[0], signed.node, problem[1])
        self._proven += 1
        return Proof(signed.node, signed.time)

    def _problem(self, signed: codec.Signed) -> tuple[str, str] | None:
        now, then, most = self._now(), signed.time / 1e6, self.settings.clock_s
        if abs(then - now) > most:
            text = f"the clock of node {signed.node} differs by {then - now:+,.0f} s from the clock here"
            return CLOCK, f"{text} ({most:g} s are allowed): set the clocks by NTP"
        if not self._nonces.take(signed.nonce, then, now):
            return REPLAYED, f"a message of node {signed.node} came a second time"
        return None

    def stale(self, what: str, proof: Proof) -> None:
        """Count an old value that was put again as a replay. Raises NotTrusted in the mode require."""
        self._proven -= 1
        self._object(what, REPLAYED, proof.node, f"an old value of node {proof.node} came a second time")

    def _object(self, what: str, reason: str, node: str, why: str) -> Proof:
        """Refuse something, or take and count it in the mode accept."""
        required = self.settings.mode == "require"
        place = node, reason
        if place in self.wrong or len(self.wrong) < MOST_NAMES:
            self.wrong[place] = self.wrong.get(place, 0) + 1
            now = self._now()
            if not abs(now - self._said.get(place, -SAY_EVERY_S)) < SAY_EVERY_S:
                self._said[place] = now
                thing = WHAT.get(what, f"a {what} of another node")
                log.warning("%s is %s: %s", thing, "refused" if required else "taken, though", why)
        if required:
            self._refused += 1
            raise NotTrusted(why)
        self._doubted += 1
        return Proof()

    def statistics(self) -> SigningStatistics:
        """Counts of this process."""
        return SigningStatistics(self._signed, self._proven, self._doubted, self._refused)


def said_of(node: str, settings: TrustSettings) -> dict[str, Any]:
    """What a daemon says to its processes."""
    return {"node": node, **settings._asdict(), "keys": [list(key) for key in settings.keys]}


def signer_of(said: Mapping[str, Any], before: Any) -> TrustSigner:
    """The signer of a process, as its daemon says; the one before stays in use, so that nothing is taken twice."""
    keys = tuple(Key(bytes(key), str(digest)) for key, digest in said["keys"])
    settings = TrustSettings(said["mode"], keys, said["clock_s"])
    if isinstance(before, TrustSigner):
        before.use(settings)
        return before
    return TrustSigner(said["node"], settings)
