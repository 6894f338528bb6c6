"""How a process gets its surroundings: link to the node, post to other processes, an office for what it serves."""

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dynamod import __version__
from dynamod.actor import System
from dynamod.discovery.link import LinkRegistry
from dynamod.message.node import FromNode, Hello, Welcome
from dynamod.transport.local import LocalTransport
from dynamod.transport.unix import UnixServer, UnixTransport

from .context import ProcessContext, TransportSelector
from .dispatcher import EndpointDispatcher
from .plan import HostPlan
from .remote import Remote


async def surround(
    plan: HostPlan,
    system: System,
    spawn: Callable[[Coroutine[Any, Any, Any], str], Any],
    from_node: Callable[[FromNode], None],
    fds: Sequence[int] = (),
) -> ProcessContext:
    """Link the process to the node at `plan.link` and open its office. Does not wait for a lease.

    `spawn` starts tasks of an actor that lives as long as the surroundings; `from_node` takes what the node says that
    is not the registry's business. Raises OSError when the office cannot be opened.
    """
    endpoints = EndpointDispatcher()
    unix, remote = UnixTransport(spawn), Remote(plan.name, endpoints.receive, spawn)
    mail = TransportSelector(plan.server, LocalTransport(endpoints.receive), unix, remote)

    def welcomed(message: Welcome) -> None:
        mail.node = message.node
        remote.welcome(message)

    hello = Hello(plan.name, os.getpid(), version=__version__)
    registry = LinkRegistry(plan.link, hello, from_node, welcomed=welcomed)
    ref = system.start("registry", lambda: registry, restart="temporary")
    await system.ready(ref, timeout=10)
    server = UnixServer(plan.server, endpoints.receive)
    await server.start()
    return ProcessContext(plan, system, registry, endpoints, server, unix, mail, remote, fds)


async def leave(process_context: ProcessContext) -> None:
    """Close the mail to and from others, after what is written has left. The link closes with the system."""
    await process_context.mail.close()
    await process_context.remote.close()
    await process_context.server.close()
