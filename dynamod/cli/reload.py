"""`dynamo reload`: a running graph gets new settings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError

from .client import Control
from .form import Form


def reload_graph(
    target: str | None,
    config_file: str | None,
    extra: Sequence[str],
    *,
    name: str,
    service_name: str | None,
    dry_run: bool,
    timeout: float,
    socket: str | None,
    form: Form,
) -> int:
    """Load the graph as `dynamo serve` would, and hand it to whoever runs it. Raises UserError."""
    control = Control(socket)
    if target is None and config_file is None and not extra:
        if dry_run or name:
            raise UserError("nothing to compare with", "give the new settings: -f new.yaml")
        control.post("reload", timeout=timeout)
        print("the daemon has read its file again; see dynamo ps and dynamo logs")
        return 0
    from dynamod.graph.absolute import absolute
    from dynamod.graph.load import load_graph

    from .preflight import check

    graph = load_graph(target, config_file, overrides=list(extra), service_name=service_name)
    check(graph)
    value = control.post(
        "reload",
        graph=name or _running(control, graph),
        new=absolute(graph, Path.cwd()).to_dict(),
        dry_run=dry_run,
        timeout=timeout,
    )
    if form == Form.JSON:
        print(json.dumps(value, indent=2))
        return 0
    for line in value["changes"]:
        print(line)
    if not value["changes"]:
        print(f"graph {value['graph']}: nothing differs")
    else:
        print(f"graph {value['graph']} {'would change' if dry_run else 'has changed'}")
    return 0


def _running(control: Control, graph: Any) -> str:
    """The running graph that is meant."""
    from dynamod.daemon.names import graph_name

    names = sorted({row["graph"] for row in control.get("ps")})
    wanted = graph_name(graph)
    if wanted in names:
        return str(wanted)
    if len(names) == 1:
        return str(names[0])
    raise UserError(f"no graph '{wanted}' runs", f"say which with --name: {', '.join(names) or 'none runs'}")
