"""`dynamo features`, and the commands that features bring."""

import json
from collections.abc import Callable
from functools import cache
from typing import NoReturn

import typer

from dynamod.extension.installed import disabled, installed
from dynamod.message.errors import UserError

from .options import OPEN, Form, Output
from .tables import table


def features(output: Output = Form.TEXT) -> None:
    """List optional capabilities: name, whether it is on, and what it is."""
    off = disabled()
    found = [
        {"name": name, "state": "off" if name in off else "on", "why": off.get(name, ""), "summary": feature.summary}
        for name, feature in installed().items()
    ]
    if output is Form.JSON:
        print(json.dumps(found, indent=2))
        return
    rows = [(one["name"], one["why"] or one["state"], one["summary"]) for one in found]
    print(table(("NAME", "STATE", "SUMMARY"), rows))


@cache
def add_commands(app: typer.Typer) -> None:
    """Add the commands of all features, once. Raises UserError for a wrong DYNAMOD_FEATURES."""
    off = disabled()
    for name, feature in installed().items():
        for word, make in feature.commands.items():
            if name not in off:
                made: typer.Typer = make()
                if [command.name for command in made.registered_commands] == [word]:
                    app.registered_commands += made.registered_commands  # one command, and no group of commands
                else:
                    app.add_typer(made, name=word)
            else:
                app.command(word, context_settings=OPEN, hidden=True)(_refusing(name, off[name]))


def _refusing(name: str, why: str) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        raise UserError(f"this command belongs to the feature '{name}', which is off: {why}", "see dynamo features")

    return refuse
