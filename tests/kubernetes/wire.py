"""What pods send each other, as a third party on the network sees it, and clients of a worker's port."""

import socket
import ssl
import struct
import threading
from typing import Self

from dynamod.transport.framing import MAGIC

FIRST, LAST = 7000, 7099
"""Ports of requests, as the chart has them."""
ALL_PROTOCOLS = 3
RECORD = b"\x17\x03\x03"
"""How a TLS record with data begins."""


class Wire:
    """Reads the packets of a pod while the block runs. Payloads of the ports of requests only, in both directions."""

    def __init__(self, namespace: str) -> None:
        self.payloads: list[bytes] = []
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self._socket.bind((f"{namespace}v", 0))
        self._socket.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)
        self._socket.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                packet = self._socket.recv(128 * 1024)
            except TimeoutError:
                continue
            if payload := _payload(packet):
                self.payloads.append(payload)

    @property
    def secure(self) -> float:
        """The share of payloads that begin with a TLS record. A record may be longer than a packet."""
        return sum(one.startswith(RECORD) for one in self.payloads) / max(1, len(self.payloads))

    def has(self, text: bytes) -> bool:
        return any(text in one for one in self.payloads)


def _payload(packet: bytes) -> bytes:
    """The data of a TCP packet from or to a port of requests."""
    kind, head = packet[12:14], 14 + (packet[14] & 15) * 4
    if kind != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
        return b""
    ports = struct.unpack_from("!HH", packet, head)
    if not any(FIRST <= one <= LAST for one in ports):
        return b""
    (size,) = struct.unpack_from("!H", packet, 16)
    return packet[head + (packet[head + 12] >> 4) * 4 : 14 + size if size else None]


def greeting(address: str, context: ssl.SSLContext | None = None, port: int = FIRST) -> str:
    """What a client hears from a worker that it greets: `hello`, or why there is no answer. None: without TLS."""
    try:
        with socket.create_connection((address, port), timeout=5) as plain:
            with context.wrap_socket(plain) if context is not None else plain as sock:
                sock.sendall(MAGIC)
                found = sock.recv(len(MAGIC))
                return "hello" if found == MAGIC else f"closed after {found!r}"
    except OSError as error:  # also of TLS
        return str(error)


def client(ca: str, pair: tuple[str, str] | None) -> ssl.SSLContext:
    """What a client trusts, and the certificate that it shows, where it has one."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    context.check_hostname = False  # pods share a certificate, and addresses are not in it
    if pair is not None:
        context.load_cert_chain(*pair)
    return context
