"""`dynamo serve`: load a graph, then run it here or hand it to the daemon."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynamod.message.errors import UserError

from .options import ConfigFile, ServiceName, Socket, Target, Timeout, target_and_overrides

if TYPE_CHECKING:
    from dynamod.graph.graph import Graph


def serve(
    context: typer.Context,
    graph: Target = None,
    config_file: ConfigFile = None,
    name: Annotated[str, typer.Option("--name", help="name of the running graph (default: its module's name)")] = "",
    service_name: ServiceName = None,
    working_dir: Annotated[str | None, typer.Option(help="folder to look for graph and config in")] = None,
    host: Annotated[str | None, typer.Option("--host", envvar="DYNAMO_HOST", help="address of the frontend")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", envvar="DYNAMO_PORT", help="port of the frontend")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the configuration and exit")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="hand the graph to the running daemon")] = False,
    timeout: Timeout = None,
    socket: Socket = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="-v debug, -vv trace")] = 0,
) -> None:
    """Serve a graph in the foreground (Ctrl-C ends it), or hand it to the daemon with --detach."""
    from dynamod.graph.config import dry_run_text
    from dynamod.graph.importing import own_config
    from dynamod.graph.load import load_graph

    from .preflight import check, check_hub, lacks_model

    folder = Path(working_dir).expanduser() if working_dir else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"no folder {working_dir}", "check --working-dir")
    target, overrides = target_and_overrides(graph, context)
    load = partial(load_graph, target, working_dir=folder, service_name=service_name)
    listen = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    named = any(getattr(context.get_parameter_source(key), "name", "") == "COMMANDLINE" for key in listen)

    def loaded(config: str | None) -> "Graph":
        graph = load(config, overrides=overrides)
        more = _listening(graph, listen, named) if listen else []
        return load(config, overrides=[*overrides, *more]) if more else graph

    def read() -> "Graph":
        """The graph; with its own config where no file is named and its engine has no model without one."""
        graph = loaded(config_file)
        own = None
        if target and config_file is None and lacks_model(graph):
            own = own_config(target, folder or Path.cwd())
        if own is None:
            return graph
        print(f"{own} is used, the config of this graph; -f names another", file=sys.stderr)
        return loaded(own)

    def checked() -> "Graph":
        return check(read(), {} if detach else os.environ)

    if dry_run:
        print(dry_run_text(read()))
    elif detach:
        _detach(checked(), name, socket)
    else:
        from . import foreground

        request = foreground.Request(check_hub(checked()), "dynamo serve", name, checked, timeout=timeout)
        raise typer.Exit(foreground.serve(request, socket, verbose))


def _detach(graph: "Graph", name: str, socket: str | None) -> None:
    from dynamod.control.arguments import ServeArguments
    from dynamod.control.table import SERVE
    from dynamod.graph.absolute import absolute

    from .client import Control

    arguments = ServeArguments(graph=absolute(graph, Path.cwd()).to_dict(), name=name)
    value = Control(socket).ask(SERVE, arguments).value
    where = f"{', '.join(value.components or ())} {' '.join(value.urls or ())}"
    print(f"graph {value.name} handed over: {where}".rstrip())


def _listening(graph: "Graph", settings: Mapping[str, object], named: bool) -> list[str]:
    """The overrides. `named`: on the command line; variables hold for all graphs, also for workers alone."""
    from dynamod.daemon.groups import groups

    names = [listener[0].name for group in groups(graph) if (listener := group.listener()) is not None]
    if not names and not named:
        return []
    if not names:
        raise UserError("--host and --port need a service that listens for clients", "this graph has none")
    return [f"--{names[-1]}.{key}={value}" for key, value in settings.items()]
