"""A server that speaks OpenAI's API as an engine: each request is a task that reads the server's stream."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

from dynamod.message.discovery import Capabilities
from dynamod.message.errors import EngineFailed, NotFound, Overloaded, RequestError, TimedOut, UserError
from dynamod.message.worker import Chat
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from .answer import Answer
from .arguments import PORT, OpenAIArguments, arguments_of
from .command import Command, free_port
from .lowering import lower
from .upstream import LOST, SILENT, Upstream

log = logging.getLogger("dynamod.engine")

POLL = 0.1
"""Seconds between looks at a server that has been started and does not answer yet."""
CLOCK = 0.25
"""Seconds between looks at the clocks of all streams."""
AFTER_FINISH = 2.0
"""Seconds that a server may take for its usage behind the finish reason, and for the end of its stream."""
FAILURES = 3
"""Looks at the server's health in a row that must fail, while no stream moves, until the worker ends."""


_URL = "the URL is that to which /models is appended, for example http://127.0.0.1:8080/v1"


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
    capabilities = Capabilities(logprobs=True, seed=True, logit_bias=True, grammars=True)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self._streams: set[_Stream] = set()
        self._tokens = 0
        self._command: Command | None = None
        self._upstream: Upstream | None = None
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    async def start(self) -> None:
        """Start the server if that is wanted, and ask it for its models. Raises UserError when it does not answer."""
        options = self.options
        arguments = arguments_of(options.arguments)
        key = arguments.key()
        self._arguments = arguments = arguments.at(_port_of(arguments))
        self._upstream = upstream = Upstream(arguments, key)
        if arguments.cmd:
            self._command = await Command.start(arguments.words, self.spawn)
            listed = await self._until_ready(self._command, upstream)
            self._command.ready = True
        else:
            listed = await _asked(upstream)
        wanted = arguments.model or options.model
        self._model = wanted or (options.name if options.name in listed else next(iter(listed), options.name))
        if not self._model:
            raise UserError(f"{upstream.url}/models lists no model", f"{_URL}; or name the model")
        if listed and self._model not in listed:
            log.warning("%s does not list the model %s, only %s", upstream.url, self._model, ", ".join(listed))
        name = options.name or options.model or self._model
        self._card = self._card_without_files(name, kind="text", capabilities=self.capabilities)
        self.spawn(self._watch_clocks(), "clocks")
        self.spawn(self._watch_health(upstream), "health")
        if self._command is not None:
            self.spawn(_crash_with(self._command), "watch cmd")

    def submit(self, request: Chat, reply: Reply) -> None:
        """Send it in a task of its own, which ends with its reader."""
        body = lower(request, self._model)
        stream = _Stream(Answer(reply, request.max_tokens), reply, self._now())
        self._streams.add(stream)
        stream.task = task = self.spawn(self._serve(stream, request.kind, body), f"request {request.request_id}")
        task.add_done_callback(lambda _: self._streams.discard(stream))
        reply.on_cancel(task.cancel)

    def statistics(self) -> EngineStatistics:
        """Steps are the server's own: none is known."""
        return EngineStatistics(running=len(self._streams), tokens=self._tokens)

    async def close(self) -> None:
        """Leave all streams, which the worker then fails, and end the server if it is ours."""
        for stream in list(self._streams):
            if stream.task is not None:
                stream.task.cancel()
        if self._upstream is not None:
            await self._upstream.close()
        if self._command is not None:
            await self._command.stop()

    # The server.

    async def _until_ready(self, command: Command, upstream: Upstream) -> list[str]:
        """Its models, once it answers. Raises UserError when it ends before, or needs too long."""
        limit = self._arguments.start_timeout
        ended = self.spawn(command.ended(), "start of cmd")
        try:
            async with asyncio.timeout(limit):
                while not ended.done():
                    try:
                        return await _listed(upstream)
                    except Overloaded:  # it does not listen yet, or loads its model
                        await asyncio.wait([ended], timeout=POLL)
                    except RequestError as error:
                        raise UserError(str(error), _hint(error)) from None
            raise ended.result()
        except TimeoutError:
            text = f"openai: cmd does not answer at {upstream.url} within {limit:g} s"
            raise UserError(text, f"its port must be {PORT} or that of the url; start_timeout sets the time") from None
        finally:
            ended.cancel()

    async def _watch_health(self, upstream: Upstream) -> None:
        """Look at the server now and then. Raises UserError when it does not answer any more."""
        failures = 0
        while True:
            before = self._tokens
            await asyncio.sleep(self._arguments.health_interval)
            try:
                await _listed(upstream)
                failures = 0
            except RequestError as error:
                busy = self._tokens != before or (self._streams and error.code == SILENT)  # it has no time for this
                failures = 0 if busy else failures + 1
                log.warning("%s (%d of %d)", error, failures, FAILURES)
                if failures >= FAILURES and not (self._command is not None and self._command.over):  # it says more
                    raise UserError(str(error), _hint(error)) from None

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

    # Requests.

    async def _serve(self, stream: _Stream, kind: str, body: bytes) -> None:
        """Whatever goes wrong is the answer of this request."""
        upstream, answer, reply = self._upstream, stream.answer, stream.reply
        assert upstream is not None
        try:
            async with upstream.stream(kind, body) as content:
                try:
                    await self._read(stream, content)
                except LOST as error:
                    if not answer.over:
                        raise _cut(upstream.lost(error), answer) from None
        except Overloaded as error:  # nothing of the answer has been sent: another instance may take it
            reply.failed("Overloaded", str(error), retry=True, code=error.code)
        except RequestError as error:
            reply.raised(error)
        except Exception as error:
            log.exception("the stream of %s could not be read", upstream.url)
            reply.failed("EngineFailed", f"the server's answer could not be read: {type(error).__name__}")

    async def _read(self, stream: _Stream, content: Any) -> None:
        """Read to the end of the stream, so that its connection can be used again."""
        answer, reply, now, read = stream.answer, stream.reply, self._now, content.readany
        while data := await read():
            count, chunks = answer.count, answer.chunks
            answer.feed(data)
            if answer.chunks != chunks:
                stream.moved = now()
                if not chunks:
                    self.prefill_completed(reply)
            self._tokens += answer.count - count
        if not answer.over and answer.finish is None:
            raise _cut(Overloaded("the server has ended its stream without an answer"), answer)
        answer.end()


def _port_of(arguments: OpenAIArguments) -> int:
    """What `{port}` means: the port of the url where that has one, else a free one."""
    given = urlsplit(arguments.url).port if arguments.url and PORT not in arguments.url else None
    return given or free_port()


def _cut(lost: Overloaded, answer: Answer) -> RequestError:
    """The connection has ended: an error of its own once something of the answer has been sent."""
    if not answer.chunks:
        return lost
    return EngineFailed(f"the connection was cut in the middle of the answer: {lost}", code="upstream_cut")


async def _listed(upstream: Upstream) -> list[str]:
    """The server's models; none when it is there and has no such list. Raises RequestError."""
    try:
        return await upstream.models()
    except NotFound:
        return []


async def _asked(upstream: Upstream) -> list[str]:
    """The models of a server that must be there. Raises UserError."""
    try:
        return await _listed(upstream)
    except RequestError as error:
        raise UserError(str(error), _hint(error)) from None


def _hint(error: RequestError) -> str:
    if error.code == "upstream_unauthorized":
        return "give the name of the variable that holds its key with the argument api_key_env"
    return _URL


async def _crash_with(command: Command) -> NoReturn:
    raise await command.ended()
