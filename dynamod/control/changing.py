"""What answers the core's commands that change something: for the owner of the daemon, root, or its group."""

import logging
from pathlib import Path

from dynamod.daemon.attached import AttachedGraph
from dynamod.daemon.names import check_name, graph_name
from dynamod.daemon.reload import describe
from dynamod.daemon.scaling import by_hand
from dynamod.daemon.served import ServedModels
from dynamod.daemon.session import read_graph
from dynamod.extension.command import CommandHandler
from dynamod.graph.absolute import absolute
from dynamod.graph.diff import diff, lines
from dynamod.message.errors import UserError
from dynamod.message.rows import Row

from . import table
from .answers import Drained, GraphStatus, Reloaded, Stopped
from .arguments import (
    DrainArguments,
    ReloadArguments,
    RestartArguments,
    ScaleArguments,
    ServeArguments,
    StopArguments,
)
from .context import CommandContext
from .last_worker import require_others_than
from .names import UnknownName, known
from .reading import graph_status

log = logging.getLogger("dynamod.daemon")


async def restart(context: CommandContext, arguments: RestartArguments) -> list[Row]:
    """Replace the processes of a component."""
    graph, component = context.names.started(arguments)
    await graph.restart(component, drain=arguments.drain, timeout=arguments.timeout)
    return context.names.rows_of(graph, component)


async def scale(context: CommandContext, arguments: ScaleArguments) -> list[Row]:
    """Run a component in `replicas` processes."""
    graph, component = context.names.started(arguments)
    if "." in component:
        raise UserError(f"{component} is one process", "scale a component, like Worker")
    replicas = arguments.replicas
    require_others_than(context.node, graph, component, force=arguments.force, keep=replicas)
    with by_hand(graph, component, replicas):
        await graph.scale(component, replicas, arguments.timeout)
    return context.names.rows_of(graph, component)


async def drain(context: CommandContext, arguments: DrainArguments) -> Drained:
    """Take a component out of service."""
    graph, component = context.names.found(arguments)
    require_others_than(context.node, graph, component, force=arguments.force, by_hand=False)
    if isinstance(graph, AttachedGraph):
        await graph.stop()
    else:
        await graph.drain(component, arguments.timeout)
    return Drained(component)


async def stop(context: CommandContext, arguments: StopArguments) -> Stopped:
    """End a graph, without a name the daemon."""
    node, name = context.node, arguments.graph
    if not name:
        node.life.stop(arguments.timeout)
        return Stopped(stopping="dynamod")
    if name in node.graphs.failed:
        node.graphs.forget(name)
    elif name in node.graphs.names():
        await node.graphs.stop(name, arguments.timeout)
    else:
        raise UnknownName(f"no graph '{name}'", known([*sorted(node.graphs.names()), *node.graphs.failed]))
    return Stopped(stopped=name)


async def serve(context: CommandContext, arguments: ServeArguments) -> GraphStatus:
    """Start a graph that was handed over."""
    graph = read_graph(arguments.graph, "use dynamo serve --detach")
    name = check_name(arguments.name) or graph_name(graph)
    runner = await context.node.graphs.start(name, graph, kept=True)
    return graph_status(runner, ServedModels(context.node).graph(runner))


async def reload(context: CommandContext, arguments: ReloadArguments) -> Reloaded:
    """A graph becomes `new`; without one the daemon's own file is read again."""
    node, name = context.node, arguments.graph
    if not name:
        await node.clients.reload_all(arguments.timeout)
        return Reloaded(reloaded="dynamod")
    if name in node.graphs.files:
        raise node.graphs.files[name].refusal()
    runner = node.graphs.running.get(name)
    if runner is None:
        raise UnknownName(f"no graph '{name}'", known([*node.graphs.running, *node.graphs.failed]))
    new = read_graph(arguments.new, "use dynamo reload")
    runner.graph = absolute(runner.graph, Path.cwd())  # what is the same must not look different
    changes = lines(runner.graph, new)
    changes += [f"{name}: 0 -> {count} processes" for name, count in runner.drained(new).items()]
    if changes and not arguments.dry_run:
        log.info("reload: graph %s changes (%s)", name, describe(diff(runner.graph, new)), extra={"graph": name})
        await runner.change(new, arguments.timeout)
        node.graphs.changed()
    return Reloaded(graph=name, changes=changes, dry_run=arguments.dry_run)


HANDLERS = (
    CommandHandler(table.RESTART, restart),
    CommandHandler(table.SCALE, scale),
    CommandHandler(table.DRAIN, drain),
    CommandHandler(table.STOP, stop),
    CommandHandler(table.SERVE, serve),
    CommandHandler(table.RELOAD, reload),
)
