"""Loading a graph in a short-lived process of its own.

A supervisor should not run the user's graph file: it may crash, hang, start threads or register metrics, and after an
edit it must be read afresh. The process of `command()` reads the arguments of `load_graph` as JSON on stdin and answers
with the graph, or the error, as JSON on stdout. `command`, `request` and `answer` serve a caller with its own
way to run processes; `load_graph_apart` is the blocking one.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError

LIMIT = 60.0
"""Seconds a graph file may take to import."""


def command() -> list[str]:
    """The process to run."""
    # -P: the current folder stays off the path until the graph asks for it; a folder `vllm` there must not hide vLLM
    home = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.append({home!r}); from dynamod.graph.apart import main; main()"
    return [sys.executable, "-P", "-c", start]


def request(
    target: str | None,
    config_file: str | None = None,
    *,
    working_dir: Path | None = None,
    overrides: Sequence[str] = (),
    service_name: str | None = None,
) -> bytes:
    """Its stdin."""
    return json.dumps(
        {
            "target": target,
            "config_file": config_file,
            "working_dir": str(Path(working_dir or Path.cwd()).resolve()),
            "overrides": list(overrides),
            "service_name": service_name,
        }
    ).encode()


def answer(stdout: bytes, stderr: bytes = b"") -> Graph:
    """The graph in its stdout. Raises the UserError found there, or one with the last line of stderr if it crashed."""
    try:
        data: dict[str, Any] = json.loads(stdout)
    except ValueError:
        last = stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"loading the graph ended without an answer: {last or 'the process died'}") from None
    if "error" in data:
        raise UserError(data["error"], data["hint"])
    return Graph.from_dict(data["graph"])


def load_graph_apart(
    target: str | None,
    config_file: str | None = None,
    *,
    working_dir: Path | None = None,
    overrides: Sequence[str] = (),
    service_name: str | None = None,
    environ: Mapping[str, str] = os.environ,
    limit: float = LIMIT,
) -> Graph:
    """`load_graph` in another process, blocking. `limit`: seconds."""
    stdin = request(target, config_file, working_dir=working_dir, overrides=overrides, service_name=service_name)
    try:
        done = subprocess.run(
            command(), input=stdin, capture_output=True, env=dict(environ), timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"the graph {target or config_file} did not load within {limit:g} s") from None
    sys.stderr.write(done.stderr.decode(errors="replace"))
    return answer(done.stdout, done.stderr)


def main() -> None:
    """Answer one request. What the user's file prints goes to stderr."""
    from dynamod.graph.load import load_graph

    arguments: dict[str, Any] = json.load(sys.stdin)
    arguments["working_dir"] = Path(arguments["working_dir"])
    with contextlib.redirect_stdout(sys.stderr):
        try:
            result: dict[str, Any] = {"graph": load_graph(**arguments).to_dict()}
        except UserError as error:
            result = {"error": str(error), "hint": error.hint}
    sys.stdout.write(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # threads that the graph file started must not keep us
