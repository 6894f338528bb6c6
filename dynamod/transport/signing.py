"""What is said to other nodes is signed, where a feature brings what signs. Without one nothing is signed or checked.

A request has its signature after the fields of `message.worker.Open`, a value of the registry at another key
(`discovery.etcd.signed`), the greeting of a connection in a field of its own. Releases that know no signatures skip all
of them.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.message.errors import DynamodError

Bytes = bytes | memoryview
REQUEST, VALUE, BLOCKS = "request", "value", "blocks"
"""What is signed: a request to another process, a value of the registry, a connection for KV blocks."""

_OPEN_FIELDS = 4
"""Parts of an `Open` on the wire, with its kind, that stand in front of the signature."""
_BYTES = (b"\xc4", b"\xc5", b"\xc6")
"""With what bytes begin in MessagePack."""


class NotTrusted(DynamodError):
    """Something of another node is not taken. The text says why, in one line."""


class Proof(NamedTuple):
    """`node`: the node that signed; empty: unsigned, or signed by a stranger, and taken all the same.

    `order`: grows with each signature of a node; 0 where there is none.
    """

    node: str = ""
    order: int = 0


class SigningStatistics(msgspec.Struct, frozen=True):
    """What was signed for other nodes, and what came from them, since the process started."""

    signed: Annotated[Total, Meta(description="Messages and values that were signed for other nodes.")]
    proven: Annotated[Total, Meta(description="Messages and values of other nodes whose signature was right.")]
    doubted: Annotated[Total, Meta(description="Messages and values without a right signature that were taken.")]
    refused: Annotated[Total, Meta(description="Messages and values without a right signature that were not taken.")]


class Signer(Protocol):
    """Signs what this node says to others, and judges what others say."""

    def sign(self, what: str, *parts: Bytes) -> bytes:
        """The signature of some parts; empty: nothing is signed now."""
        ...

    def check(self, what: str, signature: bytes, *parts: Bytes) -> Proof:
        """The node that signed these parts. Raises NotTrusted.

        A request and the greeting of a connection are taken once, a value of the registry is read again and again.
        """
        ...

    def stale(self, what: str, proof: Proof) -> None:
        """Judge what has a right signature that was replaced by a later one. Raises NotTrusted."""
        ...

    def statistics(self) -> SigningStatistics:
        """Counts of this process."""
        ...


class Signing:
    """The signer of a process. `changed`: called when there is another one, or the present one judges otherwise."""

    def __init__(self, signer: Signer | None = None) -> None:
        self.signer = signer
        self.changed: list[Callable[[], None]] = []

    def use(self, signer: Signer | None) -> None:
        """Sign and check with this one from now on; None: not at all."""
        self.signer = signer
        for changed in list(self.changed):
            changed()


def is_signed(parts: Sequence[msgspec.Raw]) -> bool:
    """Whether a message to a worker has a signature, by its undecoded parts: bytes where releases without them end."""
    return len(parts) > _OPEN_FIELDS and bytes(parts[_OPEN_FIELDS])[:1] in _BYTES


class RequestSigning:
    """Signs and checks the requests of one link. `where`: names both ends of it, in the same order at both."""

    __slots__ = ("_signing", "_where")

    def __init__(self, signing: Signing, *where: str) -> None:
        self._signing, self._where = signing, "\n".join(where).encode()

    def signed(self, payload: bytes) -> bytes:
        """An encoded `Open` with its signature."""
        signer = self._signing.signer
        signature = signer.sign(REQUEST, self._where, memoryview(payload)[1:]) if signer is not None else b""
        if not signature:
            return payload
        # an array of few fields begins with one byte, which has their number
        return b"".join((bytes((payload[0] + 1,)), memoryview(payload)[1:], msgspec.msgpack.encode(signature)))

    def check(self, parts: Sequence[msgspec.Raw]) -> str:
        """The node that signed an `Open`, by its undecoded parts; empty: none did. Raises NotTrusted."""
        signer = self._signing.signer
        if signer is None:
            return ""
        if not is_signed(parts):
            return signer.check(REQUEST, b"", self._where).node
        signature = msgspec.msgpack.decode(parts[_OPEN_FIELDS], type=bytes)
        content = (*parts[:_OPEN_FIELDS], *parts[_OPEN_FIELDS + 1 :])
        return signer.check(REQUEST, signature, self._where, b"".join(map(bytes, content))).node
