"""The commands of `dynamo`."""

import json
import re
from collections.abc import Sequence
from typing import Annotated

import typer

from dynamod import __version__
from dynamod.control.arguments import (
    DrainArguments,
    ExplainArguments,
    InspectArguments,
    LogsArguments,
    RestartArguments,
    ScaleArguments,
    StopArguments,
)
from dynamod.control.table import DRAIN, EXPLAIN, INSPECT, LOGS, PS, RESTART, SCALE, STATUS, STOP
from dynamod.extension.command import NoArguments
from dynamod.extension.installed import everywhere, explanation
from dynamod.message.control import FINISH
from dynamod.message.errors import UserError

from . import complete, features, models, reload, serve, sim
from .ask import ask, ask_agreed
from .options import OPEN, AllNodes, Component, Finish, Force, Form, Output, Socket, Timeout, examples, overrides
from .overview import Overview

app = typer.Typer(
    name="dynamo",
    cls=Overview,
    help="Serve LLMs from graphs of supervised components, and control the daemon that runs them.",
    epilog=examples(
        "dynamo serve graphs.agg:Frontend -f configs/agg.yaml",
        "dynamo serve -f configs/agg.yaml --Worker.engine=echo_core --Frontend.port=9000",
        "dynamo ps --output json",
        "dynamo logs -f Worker",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(
    help="Look at config files.",
    epilog=examples("dynamo config check my.yaml --graph graphs.agg:Frontend", "dynamo config schema > schema.json"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(config_app, name="config")


_TYPE = re.compile(r"is not a valid (int|float)(?:eger)?(?: range)?\b")
"""How typer says that a word is no number."""


def run(argv: Sequence[str]) -> int:
    """Run `dynamo` with these arguments; returns the exit code. Raises UserError for a wrong word or flag."""
    features.add_commands(app)
    try:
        code = app(args=list(argv), prog_name="dynamo", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception as error:
        # typer carries click inside itself or requires it, by its version: its errors are known by their form
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        text = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(text)
            return 0
        if below := re.match(r"No such option: (-\d+)", text):
            raise UserError(f"{below[1]} is no number from 0 upwards", "a number below 0 is not allowed") from None
        where = getattr(getattr(error, "ctx", None), "command_path", "") or "dynamo"
        text = _TYPE.sub(lambda found: f"is no {'integer' if found[1] == 'int' else 'number'}", " ".join(text.split()))
        raise UserError(text.rstrip("."), f"see {where} --help") from None
    return code if isinstance(code, int) else 0


def _version(value: bool) -> None:
    if value:
        print(f"dynamo {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Serve LLMs from graphs of supervised components, and control the daemon that runs them."""


app.command(
    context_settings=OPEN,
    epilog=examples(
        "dynamo serve graphs.agg:Frontend -f configs/agg.yaml",
        "dynamo serve -f configs/agg.yaml --Worker.engine=echo_core --Frontend.port 9000",
        "dynamo serve path/to/file.py:Frontend --detach --name mine",
    ),
)(serve.serve)


@app.command(epilog=examples("dynamo status", "dynamo status --all --output json", "dynamo status --socket-path"))
def status(
    socket_path: Annotated[
        bool, typer.Option("--socket-path", help="print only the path of the control socket")
    ] = False,
    all_nodes: AllNodes = False,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Show the daemon, its graphs and its problems. Exit code 0: no problem, 1: a problem, 3: no daemon runs."""
    if all_nodes:
        raise typer.Exit(everywhere(STATUS.name)(socket, output))
    if socket_path:
        from .client import Control

        path = str(Control(socket).path())
        print(json.dumps({"socket": path}) if output is Form.JSON else path)
        return
    from .show import status as form

    raise typer.Exit(1 if ask(STATUS, NoArguments(), form, socket, output).value.problems else 0)


@app.command(epilog=examples("dynamo ps", "dynamo ps --all", "dynamo ps --output json"))
def ps(all_nodes: AllNodes = False, socket: Socket = None, output: Output = Form.TEXT) -> None:
    """List components with their state, restarts and last error."""
    if all_nodes:
        raise typer.Exit(everywhere(PS.name)(socket, output))
    from .show import processes

    ask(PS, NoArguments(), processes, socket, output)


@app.command(epilog=examples("dynamo logs Worker", "dynamo logs -f agg/Worker", "dynamo logs -n 20"))
def logs(
    component: Annotated[str, typer.Argument(help="component; default: all", autocompletion=complete.components)] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="follow new lines as they come")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="how many of the last lines")] = 100,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Show what components have logged and printed."""
    from .client import Control

    control = Control(socket)
    if follow:
        for line in control.follow(component, lines):
            print(json.dumps({"line": line}) if output is Form.JSON else line, flush=True)
        return
    answer = control.ask(LOGS, LogsArguments(component=component, lines=lines))
    print(json.dumps(answer.raw, indent=2) if output is Form.JSON else "\n".join(answer.value.lines))


@app.command(epilog=examples("dynamo inspect", "dynamo inspect agg/Worker.0", "dynamo inspect /Processor"))
def inspect(
    actor: Annotated[str, typer.Argument(help="part of an actor's path; all when left out")] = "",
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Show what actors do: mailbox depths, current message and its age, what they await, task stacks."""
    from .show import actors

    ask(INSPECT, InspectArguments(actor=actor), actors, socket, output)


@app.command(epilog=examples("dynamo explain chatcmpl-3ed2938b-8453-4d97-94ac-ba47bd641edb"))
def explain(
    request: Annotated[
        str,
        typer.Argument(help="x-request-id of an answer, or the `id` in its body; or what a feature explains"),
    ],
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Show why a request went where it went, by every worker's score, and where its time went."""
    if (told := explanation(request)) is not None:
        told(socket, output)
        return
    from .show import decisions

    ask(EXPLAIN, ExplainArguments(request=request), decisions, socket, output)


@app.command(epilog=examples("dynamo restart Worker", "dynamo restart agg/Worker --timeout 30"))
def restart(component: Component, timeout: Finish = FINISH, socket: Socket = None, output: Output = Form.TEXT) -> None:
    """Restart a component's processes, one after the other; open streams finish first.

    A frontend is replaced when its successor listens, and finishes its streams alongside it.
    """
    from .show import left

    ask(RESTART, RestartArguments(component=component, timeout=timeout), left, socket, output)


@app.command(epilog=examples("dynamo scale Worker 4"))
def scale(
    component: Component,
    replicas: Annotated[int, typer.Argument(help="how many processes", min=0, max=256)],
    force: Force = False,
    timeout: Finish = FINISH,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Run a component in this many processes; those too many finish their streams first."""
    from .show import left

    arguments = ScaleArguments(component=component, replicas=replicas, force=force, timeout=timeout)
    ask_agreed(SCALE, arguments, left, socket, output)


@app.command(epilog=examples("dynamo drain Worker"))
def drain(
    component: Component,
    force: Force = False,
    timeout: Finish = FINISH,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Take a component out of service: no new requests, open ones finish, then it ends."""
    from .show import words

    ask_agreed(DRAIN, DrainArguments(component=component, force=force, timeout=timeout), words, socket, output)


app.command(
    context_settings=OPEN,
    epilog=examples(
        "dynamo reload graphs.agg:Frontend -f new.yaml --dry-run",
        "dynamo reload -f new.yaml --Frontend.port=9000",
        "dynamo reload",
    ),
)(reload.reload)


@app.command(epilog=examples("dynamo stop agg", "dynamo stop --timeout 60"))
def stop(
    graph: Annotated[
        str | None, typer.Argument(help="default: the daemon itself", autocompletion=complete.graphs)
    ] = None,
    timeout: Timeout = None,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Stop a graph, or the daemon with everything."""
    from .show import words

    ask(STOP, StopArguments(graph=graph or "", timeout=timeout), words, socket, output, any_release=True)


app.command(epilog=examples("dynamo pull Qwen/Qwen3-0.6B", "dynamo pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"))(
    models.pull
)
app.command(epilog=examples("dynamo models", "dynamo models --output json"))(models.models)
app.command(epilog=examples("dynamo features", "DYNAMOD_FEATURES=-anthropic dynamo serve -f configs/agg.yaml"))(
    features.features
)
app.command(context_settings={**OPEN, "help_option_names": []}, add_help_option=False)(sim.sim)


@app.command("run", context_settings={**OPEN, "help_option_names": []}, add_help_option=False)
def run_engine(context: typer.Context) -> None:
    """Run one engine without a graph file (the same as dynamo-run)."""
    from .run import run as dynamo_run

    raise typer.Exit(dynamo_run(context.args))


@config_app.command("schema", epilog=examples("dynamo config schema > configs/dynamod.schema.json"))
def config_schema(
    graph: Annotated[str, typer.Argument(help="graph whose services are typed")] = "graphs.agg:Frontend",
) -> None:
    """Print the JSON schema of config files, for editors (yaml-language-server)."""
    from dynamod.graph.load import load_graph
    from dynamod.graph.schema import schema

    print(json.dumps(schema([load_graph(graph, None)]), indent=2))


@config_app.command(
    "check",
    context_settings=OPEN,
    epilog=examples("dynamo config check my.yaml --graph graphs.agg:Frontend --Worker.engine=echo_core"),
)
def config_check(
    context: typer.Context,
    config_file: Annotated[str, typer.Argument(help="config file", autocompletion=complete.configs)],
    graph: Annotated[str | None, typer.Option("--graph", help="graph, when the file names none")] = None,
    output: Output = Form.TEXT,
) -> None:
    """Check a config file without starting anything."""
    from dynamod.graph.load import load_graph

    from .preflight import check

    loaded = check(load_graph(graph, config_file, overrides=overrides(context, context.args)))
    facts = {"config": config_file, "graph": loaded.target, "services": list(loaded.services)}
    fine = f"{config_file}: {loaded.target or 'graph'} with {', '.join(loaded.services)} is fine"
    print(json.dumps(facts, indent=2) if output is Form.JSON else fine)


@app.command(epilog=examples("dynamo env", "dynamo env --output json"))
def env(output: Output = Form.TEXT) -> None:
    """Print what matters for a bug report: versions, platform, engines."""
    from .environment import facts, text

    print(json.dumps(facts(), indent=2) if output is Form.JSON else text(facts()))
