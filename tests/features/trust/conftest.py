"""Signers with a clock that a test sets."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dynamod.features.trust.secret import Mode, TrustSettings, key_of
from dynamod.features.trust.signer import TrustSigner
from dynamod.transport.signing import Signing

OURS, THEIRS, NEXT = "0123456789abcdef" * 2, "fedcba9876543210" * 2, "02468ace13579bdf" * 2
"""Secrets of this cluster, of another cluster, and the next one of this cluster."""
Make = Callable[..., TrustSigner]


@dataclass
class Clock:
    """`seconds`: since the epoch."""

    seconds: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


def trusting(mode: Mode, *secrets: str, clock_s: float = 60.0) -> TrustSettings:
    return TrustSettings(mode, tuple(map(key_of, secrets or (OURS,))), clock_s)


def signing(mode: Mode, *secrets: str, node: str = "one") -> Signing:
    return Signing(TrustSigner(node, trusting(mode, *secrets)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Make:
    """A signer of a node, with a mode and secrets."""

    def make(node: str = "one", mode: Mode = "require", *secrets: str, now: Callable[[], float] = clock) -> TrustSigner:
        return TrustSigner(node, trusting(mode, *secrets), now)

    return make
