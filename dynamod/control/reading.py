"""What answers the core's commands that change nothing."""

import asyncio
import os
import time
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod import __version__
from dynamod.actor.inspect import inspect_system
from dynamod.daemon.runner import GraphRunner
from dynamod.daemon.served import GraphState, ServedModels
from dynamod.discovery.keys import INSTANCES
from dynamod.extension.command import CommandHandler, NoArguments
from dynamod.message.rows import Row
from dynamod.observe.metrics import exposition, load, merged, parsed

from . import problems, table
from .answers import ClusterStatus, GraphStatus, LogLines, Status
from .arguments import ExplainArguments, InspectArguments, LogsArguments
from .context import GLANCE, CommandContext
from .names import UnknownName, is_of, known, means

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OWN = "dynamod"
"""What the daemon itself is called in addition to the component processes."""


async def status(context: CommandContext, _arguments: NoArguments) -> Status:
    """The daemon, its graphs, and its problems (problems.Problem)."""
    node = context.node
    answers = await context.ask("statistics", timeout=GLANCE)
    rows, cluster, served = node.graphs.rows(), node.cluster.facts(), ServedModels(node)
    services = {one.name: served.graph(one) for one in node.graphs.all()}
    loading = {process.name.partition("/")[0] for process, answer in answers.items() if problems.loads(answer)}
    found = chain(
        problems.of_rows(rows),
        problems.of_models({process.name: answer for process, answer in answers.items()}),
        problems.of_graphs(name for name, one in services.items() if one.silent and name not in loading),
        problems.of_logs(node.logs.store),
        problems.of_cluster(cluster),
        problems.of_kept(node.graphs.trouble),
        problems.of_nodes(node.registry.items(INSTANCES)),
    )
    graphs = [graph_status(runner, services[runner.name]) for runner in node.graphs.running.values()]
    graphs += [GraphStatus(name=name, ready=False, error=kept.why) for name, kept in node.graphs.failed.items()]
    for name, file in node.graphs.files.items():
        service = services[name]
        graphs.append(GraphStatus(name=name, ready=service.ready, models=service.models, session=file.session))
    return Status(
        version=__version__,
        pid=os.getpid(),
        node=node.name,
        role="daemon",
        ephemeral=node.clients.ephemeral,
        socket=str(node.place.socket),
        uptime=time.monotonic() - node.life.born,
        cluster=msgspec.convert(cluster, ClusterStatus | None),
        problems=list(found),
        graphs=graphs,
        models=served.models(),
        components=len(rows),
        ready=bool(rows) and all(graph.ready for graph in graphs),
        gpus=node.gpus.table(),
    )


def graph_status(runner: GraphRunner, service: GraphState) -> GraphStatus:
    """A graph that the daemon has started."""
    return GraphStatus(
        name=runner.name,
        target=runner.graph.target,
        config=runner.graph.source,
        ready=service.ready,
        models=service.models,
        urls=runner.urls(),
        components=runner.components(),
        session=runner.session,
    )


async def ps(context: CommandContext, _arguments: NoArguments) -> list[Row]:
    """One row per component and replica, with the models that can be asked."""
    served = ServedModels(context.node)
    return [served.row(row) for row in context.node.graphs.rows()]


async def logs(context: CommandContext, arguments: LogsArguments) -> LogLines:
    """The last lines, or the lines after a mark."""
    node, component, after = context.node, arguments.component, arguments.after or {}
    rows = node.graphs.rows()
    hosting = {row.process for row in rows if component == row.graph or means(row, component)}
    stored = await asyncio.to_thread(node.logs.store.components)
    found = [name for name in stored if name in hosting or is_of(name, component)]
    if not found and not hosting and component:
        raise UnknownName(f"no component '{component}'", known(context.names.components()))
    mark = {"here": node.logs.recent.number}
    if "here" in after:
        result = node.logs.recent.after(after["here"], set(found) if component else None)
    else:
        result = await asyncio.to_thread(node.logs.store.tail, found, arguments.lines)
    return LogLines(result, mark)


async def inspect(context: CommandContext, options: InspectArguments) -> list[dict[str, Any]]:
    """Actors of the daemon and of all component processes whose path contains `actor`."""
    facts: list[dict[str, Any]] = [{"process": OWN, **entry} for entry in inspect_system(context.node.system, "")]
    for process, answer in (await context.ask_each(context.names.processes(), "inspect")).items():
        if isinstance(answer, BaseException):  # a finding, not a failure
            answer = [{"path": "", "error": f"does not answer: {str(answer) or type(answer).__name__}"}]
        facts += [{"process": process.name, **entry} for entry in answer]
    if pattern := options.actor:
        facts = [entry for entry in facts if pattern in f"{entry['process']}{entry.get('path', '')}"]
        if not facts:
            raise UnknownName(f"no actor matches '{pattern}'", "dynamo inspect without a name lists all")
    return facts


async def metrics(context: CommandContext, _arguments: NoArguments) -> str:
    """Statistics of the daemon's own actors and of all component processes, as Prometheus text."""
    return exposition(await node_families(context))


async def node_families(context: CommandContext, question: str = "metrics") -> "list[Metric]":
    """The same as metric families of prometheus_client. `question`: `openmetrics` gives exemplars, too."""
    await load()
    from dynamod.runtime.statistics import PREFIX, Answers, families_of, system_rows

    node, found = context.node, await context.ask_each(context.names.processes(), question)
    rows = [*system_rows(node.system), (f"{PREFIX}registry", {}, node.registry.statistics())]
    rows.append((f"{PREFIX}logs", {}, node.logs.store.statistics()))
    for process, answer in found.items():
        labels = {"process": process.name}
        rows.append((f"{PREFIX}process", labels, process.facts()))
        rows.append((f"{PREFIX}process", labels, Answers(isinstance(answer, str))))
    texts = [answer for answer in found.values() if isinstance(answer, str)]
    told = chain.from_iterable(map(parsed, texts))
    return merged(chain(families_of(OWN, rows), told))


async def explain(context: CommandContext, arguments: ExplainArguments) -> list[dict[str, Any]]:
    """The routing decisions for a request, from whichever ingress process made them."""
    answers = await context.ask("explain", {"request": arguments.request})
    found = [decision for answer in answers.values() if isinstance(answer, list) for decision in answer]
    if not found:
        hint = "an ingress process keeps those of its last 1,000"
        raise UnknownName(f"no decision is known for request '{arguments.request}'", hint)
    return sorted(found, key=lambda decision: decision["at"])


HANDLERS = (
    CommandHandler(table.STATUS, status),
    CommandHandler(table.PS, ps),
    CommandHandler(table.LOGS, logs),
    CommandHandler(table.INSPECT, inspect),
    CommandHandler(table.METRICS, metrics),
    CommandHandler(table.EXPLAIN, explain),
)
