"""Pages about the three command languages: `dynamo`, `dynamo-run` with the Python modules, `dynamod`."""

import argparse
import enum
import re
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any, get_args, get_type_hints

import typer

from dynamod.cli.app import app
from dynamod.cli.features import add_commands
from dynamod.cli.flags import HELP, frontend_parser, parser
from dynamod.cli.service import service_parser

from .text import code, fenced, page, table

EXIT_CODES = (
    ("0", "success; for `dynamo status`: no problem"),
    ("1", "the command ran and found a failure; for `dynamo status`: a problem of a graph"),
    ("2", "a flag, an argument, a file or a setting is wrong; the line on stderr says what to do"),
    ("3", "no daemon runs"),
    ("130", "ended by Ctrl-C"),
)
TYPERS = ("help", "install_completion", "show_completion")
"""Options that typer adds to a command, with texts of its own."""


def dynamo() -> str:
    """The page of `dynamo`."""
    add_commands(app)
    root: Any = typer.main.get_command(app)
    intro = "The command `dynamo` serves graphs and controls the daemon. `dynamo COMMAND --help` prints the same text."
    parts = [_command("dynamo", root)]
    parts += [_command(name, command) for name, command in _walk("dynamo", root)]
    return page("dynamo", intro, *parts, exit_codes())


def dynamo_run() -> str:
    """The page of `dynamo-run` and `python -m dynamo.frontend`."""
    intro = "The command `dynamo-run` runs one engine without a graph file."
    return page(
        "dynamo-run",
        intro,
        fenced(HELP.strip().splitlines()),
        "## Flags\n\n" + _flags(parser()),
        "## python -m dynamo.frontend\n\n" + _flags(frontend_parser()),
        exit_codes(),
    )


def dynamod() -> str:
    """The page of the daemon."""
    intro = "The command `dynamod` runs the daemon as a service. Without it the first `dynamo serve` starts a daemon."
    return page("dynamod", intro, "## Flags\n\n" + _flags(service_parser()), exit_codes())


def exit_codes() -> str:
    """The table of exit codes."""
    return "## Exit codes\n\n" + table(("code", "meaning"), EXIT_CODES)


def _walk(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if not command.hidden:
            yield f"{prefix} {name}", command
            if hasattr(command, "commands"):
                yield from _walk(f"{prefix} {name}", command)


def _command(name: str, command: Any) -> str:
    given = [one for one in command.params if not getattr(one, "hidden", False) and one.name not in TYPERS]
    words = [f"[{word}]" if not one.required else word for one in given if (word := _word(one))]
    further = "[COMMAND]" if getattr(command, "invoke_without_command", False) else "COMMAND"
    usage = " ".join([name, *words, *([further] if hasattr(command, "commands") else []), "[OPTIONS]"])
    kinds = get_type_hints(command.callback) if command.callback is not None else {}
    rows = [_option(one, kinds.get(one.name)) for one in given]
    parts = [f"## {name}", " ".join((command.help or "").split()), fenced([usage], "sh")]
    parts.append(table(("option", "value", "default", "meaning"), rows))
    if examples := _examples(command.epilog or ""):
        parts.append(fenced(examples, "sh"))
    return "\n\n".join(part for part in parts if part)


def _word(one: Any) -> str:
    """The name of an argument in a usage line; empty for an option."""
    return str(one.metavar or one.name.upper()) if one.param_type_name == "argument" else ""


def _option(one: Any, kind: Any) -> tuple[str, str, str, str]:
    """One row. `kind`: the annotation of the parameter; typer's own types differ between its releases."""
    variable = f" (environment: `{one.envvar}`)" if isinstance(one.envvar, str) else ""
    name = code(_word(one)) or ", ".join(code(name) for name in [*one.opts, *one.secondary_opts])
    return name, _value(one, kind), _default(one.default), (one.help or "") + variable


def _value(one: Any, kind: Any) -> str:
    kinds = [each for each in get_args(kind) if each is not NoneType] or [kind]
    if isinstance(kinds[0], type) and issubclass(kinds[0], enum.Enum):
        return " or ".join(code(choice.value) for choice in kinds[0])
    if _word(one) or kinds[0] is bool or getattr(one, "count", False):
        return ""
    return str(one.metavar or {int: "N", float: "NUMBER"}.get(kinds[0], "TEXT"))


def _default(value: Any) -> str:
    if value is None or value is False or value == () or callable(value):
        return ""
    value = getattr(value, "value", value)
    return code(value if not isinstance(value, float) else f"{value:g}")


def _examples(epilog: str) -> list[str]:
    lines = epilog.replace("\b", "").splitlines()
    return [line.strip() for line in lines if line.startswith("  ")]


def _flags(found: argparse.ArgumentParser) -> str:
    """A table per group, those with a heading first."""
    first, *groups = (group for group in found._action_groups if group is not found._positionals)
    parts = [f"### {group.title}\n\n{rows}" for group in groups if (rows := _rows(group._group_actions))]
    common = _rows(first._group_actions)
    return "\n\n".join([*parts, f"### every command\n\n{common}"] if parts else [common])


def _rows(actions: Iterable[argparse.Action]) -> str:
    rows = []
    for action in actions:
        if action.help is argparse.SUPPRESS or "-h" in action.option_strings:
            continue
        names = ", ".join(code(name) for name in action.option_strings) or code(action.dest.upper())
        value = str(action.metavar or "") if action.nargs != 0 else ""
        if action.choices is not None:
            value = " or ".join(map(str, action.choices))
        rows.append((names, value, re.sub(r"%\((\w+)\)s", r"\1", action.help or "")))
    return table(("flag", "value", "meaning"), rows)
