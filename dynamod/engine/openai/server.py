"""The server of the engine: found or started, watched, and ended with the worker."""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urlsplit

from dynamod.message.errors import NotFound, Overloaded, RequestError, UserError

from ..base import Spawn
from .arguments import PORT, OpenAIArguments
from .command import Command, free_port
from .upstream import SILENT, Upstream

log = logging.getLogger("dynamod.engine")

POLL = 0.1
"""Seconds between looks at a server that has been started and does not answer yet."""
FAILURES = 3
"""Looks at the server's health in a row that must fail, while no stream moves, until the worker ends."""
URL_HINT = "the URL is that to which /models is appended, for example http://127.0.0.1:8080/v1"


class Server:
    """A server that runs, or one that `cmd` starts. `spawn`: its tasks crash the worker when it is gone."""

    def __init__(self, arguments: OpenAIArguments, spawn: Spawn) -> None:
        key = arguments.key()
        self._arguments = arguments = arguments.at(_port_of(arguments))
        self._spawn = spawn
        self._command: Command | None = None
        self.upstream = Upstream(arguments, key)

    async def start(self) -> list[str]:
        """Start it if that is wanted; the names of its models. Raises UserError when it does not answer."""
        words = self._arguments.words
        if not words:
            try:
                return await self._models()
            except RequestError as error:
                raise _mistake(error) from None
        self._command = command = await Command.start(words, self._spawn)
        found = await self._until_ready(command)
        command.ready = True
        return found

    def watch(self, tokens: Callable[[], int], streams: Callable[[], int]) -> None:
        """Crash the worker when it does not answer any more. `tokens` so far and open `streams` show that it works."""
        self._spawn(self._watch_health(tokens, streams), "health")
        if self._command is not None:
            self._spawn(_crash_with(self._command), "watch cmd")

    async def close(self) -> None:
        """Close all connections, and end it if it is ours."""
        await self.upstream.close()
        if self._command is not None:
            await self._command.stop()

    async def _models(self) -> list[str]:
        """Its models; none when it is there and has no such list. Raises RequestError."""
        try:
            return await self.upstream.models()
        except NotFound:
            return []

    async def _until_ready(self, command: Command) -> list[str]:
        """Its models, once it answers. Raises UserError when it ends before, or needs too long."""
        limit = self._arguments.start_timeout
        ended = self._spawn(command.ended(), "start of cmd")
        try:
            async with asyncio.timeout(limit):
                while not ended.done():
                    try:
                        return await self._models()
                    except Overloaded:  # it does not listen yet, or loads its model
                        await asyncio.wait([ended], timeout=POLL)
                    except RequestError as error:
                        raise _mistake(error) from None
            raise ended.result()
        except TimeoutError:
            text = f"openai: cmd does not answer at {self.upstream.url} within {limit:g} s"
            raise UserError(text, f"its port must be {PORT} or that of the url; start_timeout sets the time") from None
        finally:
            ended.cancel()

    async def _watch_health(self, tokens: Callable[[], int], streams: Callable[[], int]) -> None:
        failures = 0
        while True:
            before = tokens()
            await asyncio.sleep(self._arguments.health_interval)
            try:
                await self._models()
                failures = 0
            except RequestError as error:
                busy = tokens() != before or (streams() and error.code == SILENT)  # it has no time for this
                failures = 0 if busy else failures + 1
                log.warning("%s (%d of %d)", error, failures, FAILURES)
                if failures >= FAILURES and not (self._command is not None and self._command.over):  # it says more
                    raise _mistake(error) from None


def _port_of(arguments: OpenAIArguments) -> int:
    """What `{port}` means: the port of the url where that has one, else a free one."""
    given = urlsplit(arguments.url).port if arguments.url and PORT not in arguments.url else None
    return given or free_port()


def _mistake(error: RequestError) -> UserError:
    if error.code == "upstream_unauthorized":
        return UserError(str(error), "give the name of the variable that holds its key with the argument api_key_env")
    return UserError(str(error), URL_HINT)


async def _crash_with(command: Command) -> NoReturn:
    raise await command.ended()
