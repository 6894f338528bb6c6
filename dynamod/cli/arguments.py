"""What the programs without subcommands read alike from their arguments."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dynamod.message.errors import UserError

LEVELS = ("", "debug", "trace")


class Parser(argparse.ArgumentParser):
    """A mistake is a UserError. `--help` and `--version` end the program by SystemExit."""

    def add_to(self, title: str) -> Callable[..., object]:
        """`add_argument` of the group with this title, which is made when it is first asked for."""
        groups = (group for group in self._action_groups if group.title == title)
        return (next(groups, None) or self.add_argument_group(title)).add_argument

    def flags(self) -> list[str]:
        """All flags that it knows."""
        return list(self._option_string_actions)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help or version; argparse ignores that the output takes nothing."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Raise the mistake with where help is."""
        raise UserError(message, f"see {self.prog} --help")


def configure_logs(verbose: int) -> None:
    """Set up logs for a command; `-v` and `-vv` also reach the component processes, through DYN_LOG."""
    if verbose > 2:
        raise UserError("-v can be given twice at most", "-v is debug, -vv is trace")
    level = LEVELS[verbose]
    if level and not os.environ.get("DYN_LOG"):
        os.environ["DYN_LOG"] = level
    from dynamod.observe.logs import configure

    configure(stream=sys.stderr, level=level)


def read_object(file: str, source: str, hint: str) -> dict[str, Any]:
    """What a JSON or YAML file holds; an empty one is as good as an empty object. `file`: or the JSON object itself.

    Raises UserError that begins with `source`; `hint`: what to write instead of something else.
    """
    try:
        text = file if file.lstrip().startswith("{") else Path(file).read_text(encoding="utf-8-sig")
        try:
            value = json.loads(text)  # YAML is nearly a superset: it takes 1e-5 for a string
        except ValueError as error:
            if text is file:
                raise
            value = _yaml(text, str(error))
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}", "check the path") from None
    except ValueError as error:
        raise UserError(f"{source}: {error}", "it must hold JSON or YAML") from None
    if not isinstance(value, dict):
        raise UserError(f"{source} holds no object", hint)
    return value


def _yaml(text: str, as_json: str) -> Any:
    """Raises ValueError: what is wrong with the text as JSON if it looks like that, else as YAML."""
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark is None or text.lstrip().startswith(("{", "[")):
            raise ValueError(as_json) from None
        raise ValueError(f"line {mark.line + 1}: {getattr(error, 'problem', '')}") from None
