"""Options that several commands of `dynamo` take, and the form of their help."""

import enum
from collections.abc import Sequence
from typing import Annotated

import typer

from dynamod.message.errors import UserError
from dynamod.message.hints import near

from . import complete

OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that takes overrides like `--Frontend.port=9000` too."""


class Form(enum.StrEnum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"


Output = Annotated[Form, typer.Option("--output", "-o", help="how to print the answer")]
Socket = Annotated[str | None, typer.Option(help="control socket (default: DYNAMOD_SOCKET, else usual places)")]
Component = Annotated[str, typer.Argument(help="like Worker or agg/Worker", autocompletion=complete.components)]
_TARGET = "graph, like graphs.agg:Frontend or path/to/file.py:Frontend; default: the file's"
Target = Annotated[str | None, typer.Argument(help=_TARGET, autocompletion=complete.targets)]
_CONFIG = "YAML with the components' settings"
ConfigFile = Annotated[str | None, typer.Option("--config-file", "-f", help=_CONFIG, autocompletion=complete.configs)]
ServiceName = Annotated[str | None, typer.Option(envvar="DYNAMO_SERVICE_NAME", help="only this service of the graph")]
_FINISH = "how long open streams may finish; then they move where their engine can, else they are cut"
Finish = Annotated[float, typer.Option("--timeout", min=0.1, max=86400, metavar="SECONDS", help=_FINISH)]

_FORCE = "also when a model loses its last worker; without it a terminal is asked, and scripts are refused"
Force = Annotated[bool, typer.Option("--force", help=_FORCE)]
_ALL = "of all nodes of the cluster; a node that does not answer is among them"
AllNodes = Annotated[bool, typer.Option("--all", "-a", help=_ALL)]
_GRACE = "how long open answers may finish at the end (default: 2 in a terminal, 30 in the daemon)"
Timeout = Annotated[float | None, typer.Option("--timeout", min=0.1, max=86400, metavar="SECONDS", help=_GRACE)]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])  # \b: lines stay as they are


def target_and_overrides(target: str | None, context: typer.Context) -> tuple[str | None, list[str]]:
    """The graph and the overrides, of which the first may stand in the graph's place. Raises UserError."""
    first = [target] if target is not None and target.startswith("--") else []
    return None if first else target, overrides(context, [*first, *context.args])


def overrides(context: typer.Context, words: Sequence[str]) -> list[str]:
    """The words, of which a flag that is no `--Service.key` is an error."""
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and "." not in flag:
            known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
            raise UserError(f"unknown flag {flag}", f"{near(flag, known)}a setting is --Service.key=value")
    return list(words)
