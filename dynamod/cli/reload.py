"""`dynamo reload`: a running graph gets new settings."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynamod.control.arguments import ReloadArguments
from dynamod.control.table import PS, RELOAD, STATUS
from dynamod.extension.command import NoArguments
from dynamod.message.control import FINISH
from dynamod.message.errors import UserError
from dynamod.observe.memory import replacing

from .options import ConfigFile, Finish, Form, Output, ServiceName, Socket, Target, target_and_overrides

if TYPE_CHECKING:
    from dynamod.graph.graph import Graph

    from .client import Control


def reload(
    context: typer.Context,
    graph: Target = None,
    config_file: ConfigFile = None,
    name: Annotated[str, typer.Option(help="running graph to change (default: the namesake, or the only one)")] = "",
    service_name: ServiceName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would change, and change nothing")] = False,
    timeout: Finish = FINISH,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Change a running graph to new settings: only what differs restarts, and streams finish or move first.

    What was given after `dynamo serve` (like --Frontend.port or --service-name) is to be given again. Without graph
    and file the daemon reads its own file again, as on SIGHUP.
    """
    from .client import Control

    control = Control(socket)
    target, overrides = target_and_overrides(graph, context)
    if target is None and config_file is None and not overrides:
        if dry_run or name:
            raise UserError("nothing to compare with", "give the new settings: -f new.yaml")
        control.ask(RELOAD, ReloadArguments(timeout=timeout))
        print("the daemon has read its file again; see dynamo ps and dynamo logs")
        return
    from dynamod.graph.absolute import absolute
    from dynamod.graph.load import load_graph

    from .preflight import check

    loaded = load_graph(target, config_file, overrides=overrides, service_name=service_name)
    with replacing(processes(control, lambda: name or _running(control, loaded))):
        check(loaded, {})
    new = absolute(loaded, Path.cwd()).to_dict()
    running = name or _running(control, loaded)
    answer = control.ask(RELOAD, ReloadArguments(graph=running, new=new, dry_run=dry_run, timeout=timeout))
    if output is Form.JSON:
        print(json.dumps(answer.raw, indent=2))
        return
    changes = answer.value.changes or []
    end = "nothing differs" if not changes else "would change" if dry_run else "has changed"
    print(*changes, f"graph {running}{'' if changes else ':'} {end}", sep="\n")


def processes(control: "Control", running: Callable[[], str]) -> list[int]:
    """The processes of a graph of this machine, where it runs; what is wrong with its name is said elsewhere."""
    try:
        graph = running()
        return [row.pid for row in control.ask(PS, NoArguments()).value if row.graph == graph]
    except UserError:
        return []


def _running(control: "Control", graph: "Graph") -> str:
    """The running graph that is meant: the namesake, or the only one under another name. Raises UserError."""
    from dynamod.daemon.names import graph_name

    targets = {one.name: one.target or "" for one in control.ask(STATUS, NoArguments()).value.graphs}
    wanted = graph_name(graph)
    if wanted in targets:
        return wanted
    only = next(iter(targets)) if len(targets) == 1 else ""
    if only and wanted == graph_name(replace(graph, target=targets[only])):
        return only
    hint = f"--name {only} changes that one into it" if only else f"say which with --name: {', '.join(sorted(targets))}"
    raise UserError(f"no graph '{wanted}' runs", hint if targets else "none runs")
