"""What an ingress process receives from a worker: frames, each with the deltas of many streams.

Offsets make loss and doubling visible: `Tokens.offset` counts tokens of the answer before this delta, `Text.offset`
characters, `Items.offset` items. A receiver drops what it has and treats a gap as an error.

`gc=False`: these hold nothing that could form a cycle, and there are many of them.
"""

from typing import Any

import msgspec

from .errors import REQUEST_ERRORS, EngineFailed, RequestError


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """The actor of the endpoint took the request (it is in its hands, not only in a queue)."""

    stream: int


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """New token ids of a stream, packed int32. `finish`: None while it continues, else OpenAI's finish reason.

    `cached_tokens`: tokens of the prompt that were in the engine's cache, said once, in front of the first id, by an
    engine that knows it.
    """

    stream: int
    offset: int
    ids: bytes
    finish: str | None = None
    cached_tokens: int | None = None


class Text(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """New text of a text engine's stream, and how many `tokens` it stands for; `prompt_tokens` comes with finish."""

    stream: int
    offset: int
    text: str
    tokens: int = 0
    finish: str | None = None
    prompt_tokens: int | None = None


class Items(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Values a user's endpoint yielded, or OpenAI chunk dicts of a text engine; `finish` ends the stream."""

    stream: int
    offset: int
    items: tuple[Any, ...]
    finish: str | None = None


class Logprobs(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Log probabilities of the `Tokens` delta at the same offset, sent just before it.

    `chosen`: one per token. `top`: per token, pairs (token id, log probability), best first.
    """

    stream: int
    offset: int
    chosen: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Log probabilities of the tokens of the prompt, before the first of the answer. None: of the first token.

    `top`: as in `Logprobs`. Only for requests that ask for them.
    """

    stream: int
    chosen: tuple[float | None, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The stream ends with an error: a class name of `message.errors.REQUEST_ERRORS` and its message.

    `retry`: nothing was done for the request, another instance may take it. `code`: OpenAI's, None for the class's own.
    `retry_after`: seconds after which it may be asked again.
    """

    stream: int
    error: str
    message: str
    param: str | None = None
    retry: bool = False
    code: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, stream: int, error: RequestError, *, retry: bool = False) -> "Failed":
        """The end of a stream with this error."""
        name = type(error).__name__
        return cls(stream, name, str(error), error.param, retry, error.code, error.retry_after)

    def exception(self) -> RequestError:
        """The error as an exception; what no class here knows is an engine's failure."""
        kind = REQUEST_ERRORS.get(self.error, EngineFailed)
        return kind(self.message, param=self.param, code=self.code, retry_after=self.retry_after)


Delta = Accepted | Tokens | Text | Items | Logprobs | PromptLogprobs | Failed


class Step(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """One token each of many streams that all continue: what nearly every engine step is, as columns of packed int32.

    The same as a `Tokens` of one id and no finish for each row; a stream may have several rows, in order.
    """

    streams: bytes
    offsets: bytes
    ids: bytes


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """All deltas of one engine step that go to one destination process."""

    deltas: tuple[Delta | Step, ...]
