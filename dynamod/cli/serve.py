"""`dynamo serve`: load a graph, then run it here or hand it to the daemon."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError

LEVELS = ("", "debug", "trace")


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """What was typed."""

    graph: str | None = None
    config_file: str | None = None
    name: str = ""
    service_name: str | None = None
    working_dir: str | None = None
    host: str | None = None
    port: int | None = None
    dry_run: bool = False
    detach: bool = False
    socket: str | None = None
    verbose: int = 0
    extra: Sequence[str] = ()


def serve_graph(arguments: ServeArguments) -> int:
    """Serve. Raises UserError for everything that can be known before a process starts."""
    from dynamod.graph.load import load_graph

    folder = Path(arguments.working_dir).expanduser() if arguments.working_dir else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"no folder {arguments.working_dir}", "check --working-dir")
    graph = load_graph(
        arguments.graph,
        arguments.config_file,
        working_dir=folder,
        overrides=[*arguments.extra],
        service_name=arguments.service_name,
    )
    if arguments.host is not None or arguments.port is not None:
        graph = load_graph(
            arguments.graph,
            arguments.config_file,
            working_dir=folder,
            overrides=[*arguments.extra, *_listening(graph, arguments)],
            service_name=arguments.service_name,
        )
    if arguments.dry_run:
        from dynamod.graph.config import dry_run_text

        print(dry_run_text(graph))
        return 0
    from dynamod.daemon.preflight import check

    check(graph)
    if arguments.detach:
        return _detach(graph, arguments)
    return foreground(
        graph, title="dynamo serve", name=arguments.name, socket=arguments.socket, verbose=arguments.verbose
    )


def foreground(graph: Any, *, title: str, name: str, socket: str | None, verbose: int) -> int:
    """Run a graph in this process tree: as the daemon of the machine, or as a guest of the one that runs."""
    configure_logs(verbose)
    from dynamod.daemon.boot import Options, Wanted, run
    from dynamod.daemon.paths import choose_socket

    path = choose_socket(socket)
    return run(Options(path, title, (Wanted(graph, name),)))


def configure_logs(verbose: int) -> None:
    """Set up logs for a command; `-v` and `-vv` also reach the component processes, through DYN_LOG."""
    if verbose > 2:
        raise UserError("-v can be given twice at most", "-v is debug, -vv is trace")
    level = LEVELS[verbose]
    if level and not os.environ.get("DYN_LOG"):
        os.environ["DYN_LOG"] = level
    from dynamod.observe.logs import configure

    configure(stream=sys.stderr, level=level)


def _detach(graph: Any, arguments: ServeArguments) -> int:
    from dynamod.graph.absolute import absolute

    from .client import Control

    control = Control(arguments.socket)
    value = control.post(
        "serve", graph=absolute(graph, Path.cwd()).to_dict(), name=arguments.name or None, timeout=30.0
    )
    print(f"graph {value['name']} handed over: {', '.join(value['components'])} {' '.join(value['urls'])}".rstrip())
    return 0


def _listening(graph: Any, arguments: ServeArguments) -> list[str]:
    from dynamod.daemon.groups import groups

    names = [listener[0].name for group in groups(graph) if (listener := group.listener()) is not None]
    if not names:
        raise UserError("--host and --port need a service that listens for clients", "this graph has none")
    settings = {"host": arguments.host, "port": arguments.port}
    return [f"--{names[-1]}.{key}={value}" for key, value in settings.items() if value is not None]
