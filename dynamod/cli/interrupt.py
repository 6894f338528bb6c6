"""What signals mean: to a process that serves, and to a chat, where Ctrl-C ends an answer or the command."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dynamod.message.errors import DynamodError, UserError

Talk = Callable[["Interrupts", str], Awaitable[int]]
"""Runs when the graph is ready, with the URL of its frontend; its result is the exit code of the command."""


class Interrupts:
    """Tells Ctrl-C that ends an answer from Ctrl-C that ends the command. `ended`: called when an answer has ended."""

    class Interrupted(Exception):
        """The user has had enough of this."""

    def __init__(self, ended: Callable[[], object] = lambda: None) -> None:
        self._ended = ended
        self._task: asyncio.Task[object] | None = None
        self._asked = False

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """While the body runs, the first Ctrl-C ends it with Interrupted and nothing else."""
        self._task, self._asked = asyncio.current_task(), False
        try:
            yield
        except asyncio.CancelledError:
            if not self._asked or self._task is None or self._task.uncancel() > 0:
                raise
            raise Interrupts.Interrupted from None
        finally:
            self._task = None
            asyncio.get_running_loop().call_soon(self._ended)  # the answer's line is ended first

    @property
    def busy(self) -> bool:
        """Whether an answer is being printed."""
        return self._task is not None

    def interrupt(self) -> bool:
        """Ctrl-C; True when there was something to interrupt."""
        if self._task is None or self._asked:
            return False
        self._asked = True
        self._task.cancel()
        return True


def on_signals(end: Callable[[str], None], hangup: Callable[[], None], *, service: bool = False) -> None:
    """SIGINT and SIGTERM call `end` with their name; SIGHUP calls `hangup`.

    A SIGHUP that was ignored when the program started (nohup) stays ignored, except by a service, which it reloads.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number.name)
    if service or signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hangup)


async def reloads(hangup: asyncio.Event, reload: Callable[[], Awaitable[None]], log: logging.Logger) -> None:
    """One reload after the other, until cancelled; a SIGHUP during a reload leads to another reload."""
    while True:
        await hangup.wait()
        hangup.clear()
        try:
            await reload()
        except UserError as error:
            log.error("nothing reloaded: %s", error.line())
        except (DynamodError, TimeoutError) as error:
            log.error("the reload failed: %s", error)
        except Exception:
            log.exception("the reload failed")
