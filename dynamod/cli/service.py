"""`dynamod`: the daemon as a service. A file names the graphs; those handed over later come back after a restart."""

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamod import __version__
from dynamod.message.errors import UserError
from dynamod.observe.levels import parse

from .arguments import Parser, configure_logs, read_object

if TYPE_CHECKING:
    from dynamod.daemon.node import Node
    from dynamod.daemon.reload import Wanted

log = logging.getLogger("dynamod.daemon")

CONFIG = "/etc/dynamod/dynamod.yaml"
EPILOG = f"""\
The file ({CONFIG} by default) names the graphs to start; dynamo serve --detach hands over more.

examples:
  dynamod
  dynamod --config dynamod.yaml --socket /run/dynamod/dynamod.sock
  dynamod --socket /tmp/my.sock --state-dir /tmp/my.state -v
"""
KNOWN: dict[str, type[Any]] = {"graphs": list, "socket": str, "log_level": str}
KNOWN_GRAPH: dict[str, type[Any]] = {
    **dict.fromkeys(("target", "config", "name", "working_dir", "service_name"), str),
    "overrides": list,
}


def service_parser() -> Parser:
    """The flags of `dynamod`."""
    p = Parser(
        prog="dynamod",
        description="Run graphs as supervised components of this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--config", "-c", metavar="FILE", help=f"default {CONFIG}, if it is there")
    p.add_argument("--socket", metavar="PATH", help="control socket (default: DYNAMOD_SOCKET, else the usual places)")
    p.add_argument("--state-dir", metavar="FOLDER", help="of handed-over graphs (default: $STATE_DIRECTORY)")
    p.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="for open answers to finish at the end (default: 30)"
    )
    p.add_argument("--ephemeral", action="store_true", help="no file and no state: end with the last command or file")
    p.add_argument("--verbose", "-v", action="count", default=0, help="-v debug, -vv trace")
    p.add_argument("--version", action="version", version=f"dynamod {__version__}")
    return p


def run(argv: Sequence[str]) -> int:
    """Run the daemon until it is told to stop."""
    flags = service_parser().parse_args(argv)
    if flags.ephemeral and (flags.config or flags.state_dir):
        raise UserError("--ephemeral reads no --config and keeps no --state-dir", "leave them out")
    if flags.timeout is not None and not 0 <= flags.timeout <= 86400:
        raise UserError(f"--timeout {flags.timeout:g} is out of range", "give seconds from 0 to 86400")
    settings = read_settings(flags.config) if not flags.ephemeral else {}
    if settings.get("log_level") and not flags.verbose and not os.environ.get("DYN_LOG"):
        os.environ["DYN_LOG"] = str(settings["log_level"])
    configure_logs(flags.verbose)
    from dynamod.cli.kept import KeptGraphs
    from dynamod.daemon.reload import reloader
    from dynamod.runtime.paths import choose_socket

    from .boot import Options
    from .boot import run as boot

    path = choose_socket(flags.socket or settings.get("socket")).absolute()
    if flags.ephemeral:
        return boot(Options(path, ephemeral=True, grace=flags.timeout))
    kept = KeptGraphs(state_file(flags.state_dir))
    file = flags.config or CONFIG
    wanted = _configured(settings, file) + kept.read()
    log.info("dynamod %s, control socket %s, %d graphs", __version__, path, len(wanted))

    def prepare(node: "Node") -> None:
        kept.follow(node)
        node.graphs.reload = partial(reloader(lambda: _configured(read_settings(flags.config), file)), node)

    return boot(Options(path, wanted, prepare=prepare, grace=flags.timeout))


def read_settings(file: str | None) -> dict[str, Any]:
    """The daemon's file; the default one may be missing. Raises UserError naming file and key."""
    path = Path(file or CONFIG)
    if not path.is_file():
        if file is not None:
            raise UserError(f"no file {file}", "check --config")
        return {}
    value = read_object(str(path), str(path), f"known keys: {', '.join(sorted(KNOWN))}")
    _check(value, KNOWN, path, "")
    parse(value.get("log_level") or "", f"{path}: log_level")
    for number, graph in enumerate(value.get("graphs") or []):
        if not isinstance(graph, dict):
            hint = "write {target: graphs.agg:Frontend, config: FILE}"
            raise UserError(f"{path}: graphs[{number}] is {graph!r}", hint)
        _check(graph, KNOWN_GRAPH, path, f"graphs[{number}]")
    return value


def _check(value: dict[Any, Any], known: Mapping[str, type[Any]], path: Path, where: str) -> None:
    """All keys are known and hold what they should; an empty value is as good as none."""
    if wrong := ", ".join(sorted(map(str, value.keys() - known.keys()))):
        raise UserError(f"{path}: {where and f'{where}: '}unknown {wrong}", f"known keys: {', '.join(sorted(known))}")
    for key, given in value.items():
        fits = given is None or isinstance(given, known[key])
        if not fits or (key == "overrides" and not all(isinstance(word, str) for word in given or ())):
            what = "text" if known[key] is str else "a list"
            raise UserError(f"{path}: {where and f'{where}.'}{key} is {given!r}", f"write {what} here")


def state_file(folder: str | None) -> Path | None:
    """Where the handed-over graphs are kept; None keeps nothing."""
    chosen = folder or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(chosen) / "graphs.json" if chosen else None


def _configured(settings: dict[str, Any], file: str) -> "list[Wanted]":
    from dynamod.daemon.names import check_name
    from dynamod.daemon.reload import Wanted
    from dynamod.graph.load import load_graph

    from .preflight import check

    wanted: list[Wanted] = []
    for number, entry in enumerate(settings.get("graphs") or []):
        folder = Path(entry.get("working_dir") or Path(file).parent)
        try:
            graph = load_graph(
                entry.get("target"),
                entry.get("config"),
                working_dir=folder,
                overrides=entry.get("overrides") or [],
                service_name=entry.get("service_name"),
            )
            check(graph)
            one = Wanted(graph, check_name(entry.get("name") or ""))
        except UserError as error:
            raise UserError(f"{file}: graphs[{number}]: {error}", error.hint) from None
        if one.called in [other.called for other in wanted]:
            raise UserError(f"{file}: graphs[{number}].name: a second graph '{one.called}'", "give each a name")
        wanted.append(one)
    return wanted
