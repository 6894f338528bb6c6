"""`dynamo sim` hands its words to the simulator: a checkout of the repository has it, the installed package has not."""

import sys
from importlib import import_module
from pathlib import Path

import typer

from dynamod.message.errors import UserError

ROOT = Path(__file__).parents[2]


def sim(context: typer.Context) -> None:
    """Run the control plane under faults drawn from seeds, in virtual time (in a checkout of the repository)."""
    if not (ROOT / "tools/sim/cli.py").is_file():
        raise UserError(
            "the simulator is not part of the installed package",
            "git clone https://github.com/dynamod/dynamod, and run there: uv run dynamo sim",
        )
    sys.path.insert(0, str(ROOT))  # before site-packages, where another distribution may have a module of that name
    raise typer.Exit(import_module("tools.sim.cli").run(context.args))
