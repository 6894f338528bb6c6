"""A server that speaks OpenAI's API as an engine: each request is a task that reads the server's stream."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dynamod.message.discovery import Capabilities
from dynamod.message.errors import EngineFailed, Overloaded, RequestError, TimedOut, UserError
from dynamod.message.vectors import check_size
from dynamod.message.worker import Chat
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from .answer import Answer
from .arguments import arguments_of
from .lowering import lower, lower_embedding
from .server import URL_HINT, Server
from .upstream import LOST, SILENT

log = logging.getLogger("dynamod.engine")

CLOCK = 0.25
"""Seconds between looks at the clocks of all streams."""
AFTER_FINISH = 2.0
"""Seconds that a server may take for its usage after the finish reason, and for the end of its stream."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One request. `moved`: when its last chunk came, or when it was sent."""

    answer: Answer
    reply: Reply
    moved: float
    task: "asyncio.Task[None] | None" = None


class OpenAI(Engine[Chat]):
    """Serves text. What a request may hold, and what its fields mean, is the server's business.

    The health of the server is the worker's: when it does not answer any more, or the program that was started for it
    has ended, the worker crashes, leaves the registry and is started again, again and again, as all workers are.
    """

    name = "openai"
    serves = (Chat,)
    capabilities = Capabilities(logprobs=True, seed=True, logit_bias=True, grammars=True, matryoshka=True)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self._streams: set[_Stream] = set()
        self._embeddings: set[asyncio.Task[None]] = set()
        self._tokens = 0
        self._server: Server | None = None
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    async def start(self) -> None:
        """Start the server if that is wanted, and ask it for its models. Raises UserError when it does not answer."""
        options = self.options
        self._arguments = arguments = arguments_of(options.arguments)
        self._server = server = Server(arguments, self.spawn)
        listed = await server.start()
        wanted, url = arguments.model or options.model, server.upstream.url
        self._model = wanted or (options.name if options.name in listed else next(iter(listed), options.name))
        if not self._model:
            raise UserError(f"{url}/models lists no model", f"{URL_HINT}; or name the model")
        if listed and self._model not in listed:
            log.warning("%s does not list the model %s, only %s", url, self._model, ", ".join(listed))
        name = options.name or options.model or self._model
        types = ("embeddings",) if arguments.embeddings else ("chat", "completions")
        self._card = self._card_without_files(name, kind="text", capabilities=self.capabilities, types=types)
        self.spawn(self._watch_clocks(), "clocks")
        server.watch(lambda: self._tokens, lambda: self.statistics().running)

    def submit(self, request: Chat, reply: Reply) -> None:
        """Send it in a task of its own, which ends with its reader."""
        if request.kind == "embedding":
            work = self._embed(reply, *lower_embedding(request, self._model))
            embedding = self.spawn(work, f"vectors {request.request_id}")
            self._embeddings.add(embedding)
            embedding.add_done_callback(self._embeddings.discard)
            reply.on_cancel(embedding.cancel)
            return
        body = lower(request, self._model)
        assert self._server is not None
        mask = self._server.upstream.mask
        stream = _Stream(Answer(reply, request.max_tokens, mask), reply, self._now())
        self._streams.add(stream)
        stream.task = task = self.spawn(
            self._serve(stream, request.kind, body, request.trace), f"request {request.request_id}"
        )
        task.add_done_callback(lambda _: self._streams.discard(stream))
        reply.on_cancel(task.cancel)

    def statistics(self) -> EngineStatistics:
        """Steps are the server's own: none is known."""
        return EngineStatistics(running=len(self._streams) + len(self._embeddings), tokens=self._tokens)

    async def close(self) -> None:
        """Leave all streams, which the worker then fails, and end the server if it is ours."""
        for stream in list(self._streams):
            if stream.task is not None:
                stream.task.cancel()
        for task in list(self._embeddings):
            task.cancel()
        if self._server is not None:
            await self._server.close()

    # Requests.

    async def _watch_clocks(self) -> None:
        while True:
            await asyncio.sleep(CLOCK)
            for stream in list(self._streams):
                self._check_clock(stream)

    def _check_clock(self, stream: _Stream) -> None:
        answer, limits = stream.answer, self._arguments
        waited = self._now() - stream.moved
        if answer.finish is not None or answer.over:
            if waited > AFTER_FINISH:
                answer.end()
                self._leave(stream)
        elif answer.chunks and waited > limits.gap_timeout:
            self._late(stream, f"the server's answer paused for more than {limits.gap_timeout:g} s", "upstream_stalled")
        elif not answer.chunks and waited > limits.first_timeout:
            self._late(stream, f"no token came from the server within {limits.first_timeout:g} s", SILENT)

    def _late(self, stream: _Stream, why: str, code: str) -> None:
        stream.reply.raised(TimedOut(why, code=code))
        self._leave(stream)

    def _leave(self, stream: _Stream) -> None:
        assert stream.task is not None
        stream.task.cancel()

    async def _serve(self, stream: _Stream, kind: str, body: bytes, trace: Mapping[str, str]) -> None:
        """Whatever goes wrong is the answer of this request."""
        assert self._server is not None
        upstream, answer, reply = self._server.upstream, stream.answer, stream.reply
        try:
            async with upstream.stream(kind, body, trace) as content:
                try:
                    await self._read(stream, content)
                except LOST as error:
                    if not answer.over:
                        raise _cut(upstream.lost(error), answer) from None
        except Overloaded as error:  # nothing of the answer has been sent: another instance may take it
            hidden = upstream.mask.error(error)
            reply.failed("Overloaded", str(hidden), retry=True, code=hidden.code)
        except RequestError as error:
            reply.raised(upstream.mask.error(error))
        except Exception as error:
            log.exception("the stream of %s could not be read", upstream.url)
            reply.failed("EngineFailed", f"the server's answer could not be read: {type(error).__name__}")

    async def _embed(self, reply: Reply, body: bytes, dimensions: int | None) -> None:
        """Vectors come in one piece. `dimensions`: numbers of each that were asked for."""
        assert self._server is not None
        limit, upstream = self._arguments.first_timeout, self._server.upstream
        try:
            async with asyncio.timeout(limit):
                found, usage = await upstream.vectors(body)
            if dimensions is not None and any(len(vector) != 4 * dimensions for vector in found):
                text = f"the server's vectors do not have the {dimensions} numbers that were asked for"
                raise EngineFailed(text, code="upstream_dimensions")
            check_size(found)
            reply.items(found)
            reply.text("", 0, "stop", usage)
        except ValueError as error:
            reply.raised(EngineFailed(str(error), code="upstream_too_large"))
        except TimeoutError:
            reply.raised(TimedOut(f"no vectors came from the server within {limit:g} s", code=SILENT))
        except Overloaded as error:  # another instance may take it
            hidden = upstream.mask.error(error)
            reply.failed("Overloaded", str(hidden), retry=True, code=hidden.code)
        except RequestError as error:
            reply.raised(upstream.mask.error(error))
        except Exception as error:
            log.exception("the vectors of %s could not be read", upstream.url)
            reply.failed("EngineFailed", f"the server's vectors could not be read: {type(error).__name__}")

    async def _read(self, stream: _Stream, content: Any) -> None:
        """Read to the end of the stream, so that its connection can be used again."""
        answer, reply, now, read = stream.answer, stream.reply, self._now, content.readany
        while data := await read():
            count, chunks = answer.count, answer.chunks
            answer.feed(data)
            if answer.chunks != chunks or answer.finish is not None:
                stream.moved = now()
            if answer.chunks and not chunks:
                self.prefill_completed(reply)
            self._tokens += answer.count - count
        if not answer.over and answer.finish is None:
            raise _cut(Overloaded("the server has ended its stream without an answer"), answer)
        answer.end()


def _cut(lost: Overloaded, answer: Answer) -> RequestError:
    """The connection has ended: an error of its own once something of the answer has been sent."""
    if not answer.chunks:
        return lost
    return EngineFailed(f"the connection was cut in the middle of the answer: {lost}", code="upstream_cut")
