"""One endpoint from its start to its end."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynamod.actor import ActorUnreachable, Crashed, Reason, Supervisor
from dynamod.discovery.keys import Address
from dynamod.engine.python.handler import Handler
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.plan import ServicePlan

from .connection import Connection
from .host import EndpointHost, ModelHost, Place

if TYPE_CHECKING:
    from .runtime import DistributedRuntime

log = logging.getLogger("dynamod.python")

LINGER = 0.1
"""Seconds that an endpoint still takes requests once it has left the registry: not all have heard of that yet."""
STOP = 3.0
"""Seconds that an endpoint has to end once nothing is waited for any more."""


async def serve(
    runtime: "DistributedRuntime",
    connection: Connection,
    address: Address,
    function: Callable[..., Any],
    card: ModelCard | None,
    *,
    graceful: bool,
) -> None:
    """Serve until the runtime ends; see runtime.Endpoint.serve_endpoint."""
    if runtime.ended:
        return
    handler = Handler(function)
    where, process_context = str(address), connection.process_context
    if address in connection.states:
        raise UserError(f"dyn://{where} is served by this process already", "choose another endpoint")
    wake, ready, grace = asyncio.Event(), False, 0.0

    def end(seconds: float) -> None:
        nonlocal grace
        grace = seconds
        wake.set()

    def published() -> None:
        nonlocal ready
        ready = True
        log.info("serving dyn://%s%s", where, f" with model {card.name}" if card is not None else "")
        connection.show(address, "Ready")

    service = ServicePlan(address.component, {"namespace": address.namespace, "component": address.component})
    place = Place(
        ComponentContext(process_context, service),
        address.endpoint,
        card,
        static=runtime.is_static,
        published=published,
    )
    host: EndpointHost | ModelHost = (
        EndpointHost(place, handler)
        if card is None
        else ModelHost(place, handler, card, connection.block_registry(address.namespace, address.component))
    )
    name = f"{address.namespace}.{address.endpoint}".replace("/", "%2F")  # a slash is for the children of an actor
    forget = runtime.on_end(end)
    connection.cuts[host.cut] = None
    connection.show(address, "Starting")
    supervisor: Supervisor | None = None
    try:
        supervisor = await connection.supervisor(address.component)
        ref = process_context.system.start(name, lambda: host, under=supervisor, restart="temporary", shutdown=STOP)
        process_context.system.watch(ref, lambda _notice: wake.set())
        await wake.wait()
        cell = process_context.system.cell(ref)
        if cell is None:
            raise _error(process_context.system.reason_of(ref), where)
        if ready and graceful and grace > 0:
            connection.show(address, "Draining")
            timer = asyncio.get_running_loop().call_later(grace, _cut, host, where)
            try:
                place.withdraw()
                await asyncio.sleep(min(grace, LINGER))
                await supervisor.stop_child(name, drain=True, timeout=grace + STOP)
            finally:
                timer.cancel()
    finally:
        if supervisor is not None:
            await supervisor.stop_child(name)
        process_context.endpoints.remove(where)
        connection.cuts.pop(host.cut, None)
        forget()
        connection.show(address, "")


def _cut(host: EndpointHost | ModelHost, where: str) -> None:
    log.warning("dyn://%s: what is still open is cut", where)
    host.cut()


def _error(reason: Reason | None, where: str) -> Exception:
    if isinstance(reason, Crashed) and isinstance(reason.error, Exception):
        return reason.error
    return ActorUnreachable(f"dyn://{where} ended ({reason})")
