"""The bytes of server-sent events.

With HTTP/1.1 a frame carries its own chunked framing, so that one `transport.write` sends it.
"""

from .errors import printable


class EventFrames:
    """Makes the frames of one response. `chunked`: with the chunked framing of HTTP/1.1."""

    def __init__(self, chunked: bool) -> None:
        self._chunked = chunked

    def data(self, payload: bytes) -> bytes:
        """A message; the payload has no line break."""
        return self.frame(b"data: %b\n\n" % payload)

    def event(self, name: str, payload: bytes) -> bytes:
        """A message of another type than the usual one."""
        return self.frame(b"event: %b\ndata: %b\n\n" % (one_line(name), payload))

    def comment(self, text: str) -> bytes:
        """A line that clients ignore."""
        return self.frame(b": %b\n\n" % one_line(text))

    def frame(self, payload: bytes) -> bytes:
        """Payload with chunked framing where the connection needs it."""
        return b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload


def one_line(text: str) -> bytes:
    """Text that cannot end a field of an event."""
    return " ".join(printable(text).splitlines()).encode()
