"""How a process opens what its components share: its transports, and a socket for the requests that it takes."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dynamod.actor import System
from dynamod.discovery.link import LinkRegistry
from dynamod.message.node import Welcome
from dynamod.transport.local import LocalTransport
from dynamod.transport.unix import UnixServer, UnixTransport

from .context import ProcessContext, TransportSelector
from .dispatcher import EndpointDispatcher
from .plan import HostPlan
from .remote import Remote


async def open_process_context(
    plan: HostPlan,
    system: System,
    spawn: Callable[[Coroutine[Any, Any, Any], str], Any],
    registry: Callable[[Callable[[Welcome], None]], LinkRegistry],
    fds: Sequence[int] = (),
) -> ProcessContext:
    """Connect the process to its daemon and open its request server. Does not wait for a lease.

    `spawn` starts tasks of an actor that lives as long as the context. `registry` makes the connection to the daemon,
    with what is to be called at each welcome. Raises OSError when the socket for requests cannot be opened.
    """
    endpoints = EndpointDispatcher()
    unix, remote = UnixTransport(spawn), Remote(plan.name, endpoints.receive, spawn)
    transport = TransportSelector(plan.server, LocalTransport(endpoints.receive), unix, remote)

    def welcomed(message: Welcome) -> None:
        transport.node = message.node
        remote.welcome(message)

    link = registry(welcomed)
    await system.ready(system.start("registry", lambda: link, restart="temporary"), timeout=10)
    server = UnixServer(plan.server, endpoints.receive)
    await server.start()
    return ProcessContext(plan, system, link, endpoints, server, unix, transport, remote, fds)


async def close_process_context(process_context: ProcessContext) -> None:
    """Close the transports, after what is written has left. The connection to the daemon closes with the system."""
    await process_context.transport.close()
    await process_context.remote.close()
    await process_context.server.close()
