"""The frames of a streamed answer. Everything but the text is prepared once per stream."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.http.errors import printable
from dynamod.http.stream import EventFrames

from .details import RequestMetrics
from .response import Usage

if TYPE_CHECKING:
    from .generate import Generation

_encode = msgspec.json.Encoder().encode
_SIZES = tuple(b"%x\r\n" % size for size in range(1024))  # most frames: a lookup instead of formatting


class ChunkFrames(EventFrames):
    """Makes the frames of one stream. `usage_null`: chunks say `"usage": null` because the last one says it."""

    def __init__(
        self,
        form: "Generation[Any]",
        request_id: str,
        model: str,
        created: int,
        *,
        chunked: bool,
        usage_null: bool = False,
    ) -> None:
        super().__init__(chunked)
        head = {
            "id": form.id_prefix + request_id,
            "object": form.chunk_object,
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._form = form
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._usage_null = b',"usage":null' if usage_null else b""
        _, after = self._around_text(0, first=False)
        tail = after + b',"logprobs":null,"finish_reason":null}]' + self._usage_null + b"}\n\n"
        self._tail_size = len(tail)
        self._tail = tail + b"\r\n" if chunked else tail

    def prefix(self, index: int, first: bool) -> bytes:
        """What stands before the text of a choice. `first`: nothing of the choice was sent before."""
        return self._head + self._around_text(index, first)[0]

    def _around_text(self, index: int, first: bool) -> tuple[bytes, bytes]:
        """The choice of a chunk before its text, and after it without the bracket that ends the choice."""
        before, _, after = _encode({"index": index, **self._form.delta("", first)}).rpartition(b'""')
        return before, after[:-1]

    def text(self, prefix: bytes, text: str) -> bytes:
        """The frame of a piece of text: the hot path."""
        try:
            content = _encode(text)
        except UnicodeEncodeError:
            content = _encode(printable(text))
        if self._chunked:
            size = len(prefix) + len(content) + self._tail_size
            line = _SIZES[size] if size < 1024 else b"%x\r\n" % size
            return b"".join((line, prefix, content, self._tail))
        return b"".join((prefix, content, self._tail))

    def chunk(
        self,
        choice: Mapping[str, Any] | None,
        usage: Usage | None = None,
        nvext: Mapping[str, Any] | None = None,
        metrics: RequestMetrics | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> bytes:
        """Any other chunk. Raises TypeError for what is not JSON. No choice: the usage chunk."""
        inner = b"" if choice is None else _encode(choice)
        tail = self._usage_null if usage is None else b',"usage":' + _encode(usage)
        tail += b"" if nvext is None else b',"nvext":' + _encode(nvext)
        tail += b"" if metrics is None else b',"metrics":' + _encode(metrics)
        tail += b"" if prompt_ids is None else b',"prompt_token_ids":' + _encode(prompt_ids)
        return self.frame(b"%b%b]%b}\n\n" % (self._head, inner, tail))

    def annotations(self, values: Mapping[str, Any]) -> bytes:
        """A chunk without choices. Raises TypeError for what is not JSON.

        NVIDIA Dynamo sends each as an event without data, on which OpenAI's SDKs end with an error.
        """
        return self.frame(b'%b]%b,"nvext":%b}\n\n' % (self._head, self._usage_null, _encode(values)))

    def error(self, error: Mapping[str, Any]) -> bytes:
        """The stream ends here with OpenAI's error object."""
        return self.event("error", _encode(error))

    def done(self) -> bytes:
        """The stream ends here, complete."""
        return self.data(b"[DONE]")
