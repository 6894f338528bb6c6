"""A signature: the node that signed, the time, which secret, a number that is used once, and the HMAC over all of it.

    u8 version | u8 length of the node's name | 4 bytes digest of the secret | u64 time in microseconds
    | 12 bytes nonce | the node's name | 32 bytes HMAC-SHA256

The HMAC is over what stands before it, what is signed, and the SHA-256 of the content, whose parts are counted.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterable
from typing import NamedTuple

from dynamod.transport.signing import Bytes

VERSION = 1
NONCE = 12
_HEAD = struct.Struct(f"<BB4sQ{NONCE}s")
_SIZE = struct.Struct("<Q")
_MAC = 32
LONGEST_NAME = 255
"""Bytes of a node's name that are signed."""
LARGEST = _HEAD.size + LONGEST_NAME + _MAC
LATEST = 2**63
"""Microseconds since the epoch below which a time is one."""


class SignatureError(ValueError):
    """The bytes are no signature that this release reads."""


class Signed(NamedTuple):
    """What a signature says. `time`: microseconds since the epoch. `digest`: of the secret, in hexadecimal digits."""

    node: str
    time: int
    nonce: bytes
    digest: str

    def head(self) -> bytes:
        """The bytes in front of the HMAC. Raises SignatureError for what cannot be said."""
        name = self.node.encode(errors="replace")[:LONGEST_NAME].decode(errors="ignore").encode()
        if len(self.nonce) != NONCE or not 0 <= self.time < LATEST:
            raise SignatureError("nonce or time is out of range")
        return _HEAD.pack(VERSION, len(name), bytes.fromhex(self.digest), self.time, self.nonce) + name


def mac(key: bytes, head: bytes, what: str, parts: Iterable[Bytes]) -> bytes:
    """The HMAC of a signature."""
    content = hashlib.sha256()
    for part in parts:
        content.update(_SIZE.pack(len(part)))  # so that no two lists of parts have one digest
        content.update(part)
    return hmac.digest(key, b"\n".join((head, what.encode(), content.digest())), hashlib.sha256)


equal = hmac.compare_digest
"""Compares in a time that says nothing of where two differ."""


def encode(key: bytes, signed: Signed, what: str, parts: Iterable[Bytes]) -> bytes:
    """A signature of some parts."""
    head = signed.head()
    return head + mac(key, head, what, parts)


def decode(signature: bytes) -> tuple[Signed, bytes, bytes]:
    """What a signature says, its bytes in front of the HMAC, and the HMAC. Raises SignatureError."""
    if not _HEAD.size + _MAC <= len(signature) <= LARGEST:
        raise SignatureError(f"a signature has no {len(signature)} bytes")
    version, size, digest, time, nonce = _HEAD.unpack_from(signature)
    if version != VERSION:
        raise SignatureError(f"a signature of version {version} is of another release")
    if len(signature) != _HEAD.size + size + _MAC or time >= LATEST:
        raise SignatureError("the parts of the signature do not fit together")
    end = _HEAD.size + size
    try:
        node = signature[_HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise SignatureError("the node's name is no text") from None
    if not node.isprintable():
        raise SignatureError("the node's name has control characters")
    return Signed(node, time, nonce, digest.hex()), signature[:end], signature[end:]
