"""What the programs without subcommands read alike from their arguments."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from dynamod.message.errors import UserError

LEVELS = ("", "debug", "trace")


class Parser(argparse.ArgumentParser):
    """A mistake is a UserError. `--help` and `--version` end the program by SystemExit."""

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
    """What a JSON or YAML file holds; an empty one is as good as an empty object.

    Raises UserError that begins with `source`; `hint`: what to write instead of something else.
    """
    import yaml

    try:
        text = Path(file).read_text(encoding="utf-8")
        try:
            value = json.loads(text)  # YAML is nearly a superset: it takes 1e-5 for a string
        except ValueError:
            value = yaml.safe_load(text) or {}
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}", "check the path") from None
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{source}: {' '.join(str(error).split())}", "it must hold JSON or YAML") from None
    if not isinstance(value, dict):
        raise UserError(f"{source} holds no object", hint)
    return value
