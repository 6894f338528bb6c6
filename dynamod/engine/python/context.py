"""The context of one request: its id, and whether a reader still waits for the answer."""

import asyncio
import uuid
from collections.abc import Callable


class Context:
    """What a handler is given in addition to the request, and what a caller may give a request to be able to stop it.

    Stopped: the answer is not wanted any more, and the handler should finish soon. Killed: the reader has left. A
    handler that gives its own context to calls of other endpoints has these calls stopped with its own request.
    """

    def __init__(self, id: str | None = None) -> None:  # noqa: A002 - NVIDIA Dynamo's name
        self._id = id or uuid.uuid4().hex
        self._stopped = self._killed = False
        self._callbacks: list[Callable[[], object]] = []

    def id(self) -> str:
        """The request's id, which is also in the logs of others."""
        return self._id

    def is_stopped(self) -> bool:
        """Whether the answer is not wanted any more."""
        return self._stopped

    def is_killed(self) -> bool:
        """Whether the reader has left."""
        return self._killed

    def stop_generating(self) -> None:
        """Ask for the end of the answer. Called again, it does nothing."""
        if not self._stopped:
            self._stopped = True
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def async_killed_or_stopped(self) -> "asyncio.Future[None]":
        """A future that is done when the context is stopped or killed. Cancelling it changes nothing else."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        self.on_stop(done)
        future.add_done_callback(lambda _: self.forget(done))
        return future

    def kill(self) -> None:
        """Stop, and mark that the reader has left."""
        self._killed = True
        self.stop_generating()

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when stopped (at once if it is)."""
        if self._stopped:
            callback()
        else:
            self._callbacks.append(callback)

    def forget(self, callback: Callable[[], object]) -> None:
        """Take a callback of `on_stop` back."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)
