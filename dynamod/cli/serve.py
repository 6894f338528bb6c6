"""`dynamo serve`: load a graph, then run it here or hand it to the daemon."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from .interrupt import Talk

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
    folder = Path(arguments.working_dir).expanduser() if arguments.working_dir else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"no folder {arguments.working_dir}", "check --working-dir")
    graph = _read(arguments, folder)
    if arguments.dry_run:
        from dynamod.graph.config import dry_run_text

        print(dry_run_text(graph))
        return 0
    from .preflight import check

    check(graph)
    if arguments.detach:
        return _detach(graph, arguments)

    def again() -> Any:
        new = _read(arguments, folder)
        check(new)
        return new

    return foreground(
        graph,
        title="dynamo serve",
        name=arguments.name,
        socket=arguments.socket,
        verbose=arguments.verbose,
        again=again,
    )


def _read(arguments: ServeArguments, folder: Path | None) -> Any:
    from dynamod.graph.load import load_graph

    def load(more: Sequence[str] = ()) -> Any:
        return load_graph(
            arguments.graph,
            arguments.config_file,
            working_dir=folder,
            overrides=[*arguments.extra, *more],
            service_name=arguments.service_name,
        )

    graph = load()
    if arguments.host is not None or arguments.port is not None:
        graph = load(_listening(graph, arguments))
    return graph


def foreground(
    graph: Any,
    *,
    title: str,
    name: str,
    socket: str | None,
    verbose: int,
    again: Callable[[], Any] | None = None,
    talk: "Talk | None" = None,
) -> int:
    """Run a graph in the daemon of this node, for as long as this command lives.

    `again` reads the graph anew, for SIGHUP. `talk` speaks to it instead of clients: nothing else is printed.
    """
    configure_logs(verbose)
    from .attach import take
    from .foreground import Request, serve

    return serve(take(socket), Request(graph, title, name, again, talk))


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
    value = control.post("serve", 30.0, graph=absolute(graph, Path.cwd()).to_dict(), name=arguments.name or None)
    print(f"graph {value['name']} handed over: {', '.join(value['components'])} {' '.join(value['urls'])}".rstrip())
    return 0


def _listening(graph: Any, arguments: ServeArguments) -> list[str]:
    from dynamod.daemon.groups import groups

    names = [listener[0].name for group in groups(graph) if (listener := group.listener()) is not None]
    if not names:
        raise UserError("--host and --port need a service that listens for clients", "this graph has none")
    settings = {"host": arguments.host, "port": arguments.port}
    return [f"--{names[-1]}.{key}={value}" for key, value in settings.items() if value is not None]
