"""The runtime that a user's file is given, and what is asked of it: namespaces, components, endpoints."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dynamod.discovery.keys import Address
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.runtime.endpoint_client import Client

from .connection import GRACE, Connection, acquire, grace_of
from .serving import serve

log = logging.getLogger("dynamod.python")

AFTERWARDS = 5.0
"""Seconds that a worker function has to return once its endpoints have ended; then it is cancelled."""


class DistributedRuntime:
    """One per worker function; all of a process share its place in the node (`connection.Connection`).

    `dynamo_worker` makes and closes it. One that is made by hand connects when it is first needed and is closed by
    `await runtime.close()`, else with its loop. `is_static`: no instance is discovered, addresses are fixed.
    """

    def __init__(self, event_loop: asyncio.AbstractEventLoop | None = None, is_static: bool = False) -> None:
        self.is_static = is_static
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._on_end: dict[Callable[[float], object], None] = {}
        self.ended = False  # it is over, or about to be
        self.task: asyncio.Task[Any] | None = None  # the worker function's, cancelled when the end finds nothing served
        self.cancelled = False  # the worker function was
        self._timer: asyncio.TimerHandle | None = None

    def namespace(self, name: str) -> "Namespace":
        """A namespace. Raises UserError for an illegal name."""
        Address.parse(name)
        _one_word("namespace", name)
        return Namespace(self, name)

    def shutdown(self) -> None:
        """End: every `serve_endpoint` of this runtime finishes what is open, within a bound, and returns."""
        self.end(grace_of(GRACE))

    def end(self, grace: float) -> None:
        """The same with `grace` seconds for what is open. Called again, it does nothing."""
        if self.ended:
            return
        self.ended = True
        for callback in list(self._on_end):
            callback(grace)
        if self.task is not None:
            delay = grace + AFTERWARDS if self._on_end else 0.0
            self._timer = asyncio.get_running_loop().call_later(delay, self._cancel)

    async def connect(self) -> Connection:
        """The process's connection. Raises UserError when the node cannot be joined."""
        async with self._connecting:
            if self._connection is None:
                self._connection = await acquire()
                self._connection.ends[self.end] = None
        return self._connection

    @property
    def joined(self) -> bool:
        """Whether the process is connected to the node."""
        return self._connection is not None

    def connection(self) -> Connection:
        """The process's connection. Raises UserError before it has joined the node."""
        if self._connection is None:
            raise UserError("this process has no lease yet", "await component.create_service() before")
        return self._connection

    async def close(self) -> None:
        """Leave the node, if no other runtime of the process is left."""
        self.task = None
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.ends.pop(self.end, None)
            try:
                await self._end_what_is_served()
            finally:
                await connection.release()

    async def _end_what_is_served(self) -> None:
        """Endpoints that the worker function has left running, in tasks of its own: they end before the connection."""
        for callback in list(self._on_end):
            callback(0.0)
        try:
            async with asyncio.timeout(AFTERWARDS):
                while self._on_end:  # noqa: ASYNC110 - rare, and short
                    await asyncio.sleep(0.01)
        except TimeoutError:
            log.warning("an endpoint did not end within %g s", AFTERWARDS)

    def on_end(self, callback: Callable[[float], object]) -> Callable[[], None]:
        """Call `callback(grace)` at the end; returns what takes that back."""
        self._on_end[callback] = None
        return lambda: self._on_end.pop(callback, None)

    def _cancel(self) -> None:
        if self.task is not None:
            self.cancelled = True
            self.task.cancel()


class Namespace:
    """A part of the world whose components find each other."""

    def __init__(self, runtime: DistributedRuntime, name: str) -> None:
        self._runtime, self.name = runtime, name

    def component(self, name: str) -> "Component":
        """A component. Raises UserError for an illegal name."""
        _one_word("component", name)
        return Component(self._runtime, self.name, name)


class Component:
    """A group of processes that do the same."""

    def __init__(self, runtime: DistributedRuntime, namespace: str, name: str) -> None:
        self.runtime, self.namespace, self.name = runtime, namespace, name

    async def create_service(self) -> None:
        """Join the node now rather than at the first endpoint; nothing else has to be created here."""
        await self.runtime.connect()

    def endpoint(self, name: str) -> "Endpoint":
        """An endpoint. Raises UserError for an illegal name."""
        _one_word("endpoint", name)
        return Endpoint(self.runtime, Address(self.namespace, self.name, name))


class Endpoint:
    """An address: to serve at, or to be a client of."""

    def __init__(self, runtime: DistributedRuntime, address: Address) -> None:
        self._runtime, self.address = runtime, address
        self._card: ModelCard | None = None
        self._serving = False

    @property
    def runtime(self) -> DistributedRuntime:
        """Whose address it is."""
        return self._runtime

    async def serve_endpoint(
        self,
        handler: Callable[..., Any],
        graceful_shutdown: bool = True,
        metrics_labels: Sequence[tuple[str, str]] | None = None,
        health_check_payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Serve until the runtime ends: SIGINT, SIGTERM, `dynamo stop`, `runtime.shutdown()`.

        `handler(request)` or `handler(request, context)`: an async generator, or an async function that returns one
        answer. At the end what is open may finish (`graceful_shutdown`, with a bound), or is cut at once, and front
        doors send it elsewhere where they can. `metrics_labels` and `health_check_payload` have no effect: what the
        process counts has the labels of its node, and a process that is gone is seen without being asked.

        Raises UserError when another process serves the model under its name or a static address, and what broke the
        endpoint.
        """
        connection = await self._runtime.connect()
        self._serving = True
        try:
            await serve(self._runtime, connection, self.address, handler, self._card, graceful=graceful_shutdown)
        finally:
            self._serving = False

    async def client(self) -> Client:
        """A client of all instances (of the static one, in a static runtime). Raises UserError."""
        connection = await self._runtime.connect()
        return await Client(connection.process_context, self.address, static=self._runtime.is_static).open()

    def lease_id(self) -> int:
        """The id of this process's instances. Raises UserError before the process has joined the node."""
        return self._runtime.connection().process_context.registry.lease

    def prepare(self, doing: str) -> None:
        """Show in `ps` what is done before the endpoint is served; empty: nothing more."""
        if self._runtime.joined:
            self._runtime.connection().shown.prepare(self.address.component, doing)

    def register(self, card: ModelCard) -> None:
        """Serve this model here (`register_llm`). Raises UserError when it is too late, or there is one."""
        if self._serving:
            raise UserError(
                f"dyn://{self.address} is served already", "call register_llm before serve_endpoint, and wait for it"
            )
        if self._card is not None and self._card.name != card.name:
            raise UserError(
                f"dyn://{self.address} serves model {self._card.name!r}", "serve another one at an endpoint of its own"
            )
        self._card = card


def _one_word(what: str, name: str) -> None:
    if "." in str(name):
        raise UserError(f"the {what} {name!r} has a dot in its name", "letters, digits, '_' and '-'")
    Address.parse(str(name))
