"""Words for tab completion. Never fails and never waits long: no words are better than a stuck terminal."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynamod.message.rows import Row

_LINKED = re.compile(r"^(\w+)\.link\(", re.MULTILINE)
"""A graph begins at the service whose links are written: `Frontend.link(Processor)`."""


def run_words(line: str) -> list[str]:
    """What may stand where the cursor is in a line of `dynamo-run`."""
    from dynamod.engine.names import ENGINES
    from dynamod.preprocess.packaged import PACKAGED
    from dynamod.router.policies import NAMES

    from .flags import parser

    *before, word = line.split(" ")
    if before[-1:] == ["--router-mode"]:
        known = list(NAMES)
    else:
        engines = [f"{name}:" if entry.behind else name for name, entry in ENGINES.items()]
        ways = {
            "in=": ["text", "stdin", "http", "batch:", "dyn://", "none"],
            "out=": [*engines, "auto", "dyn", "dyn://"],
        }
        given = [key for key in ways if any(one.startswith(key) for one in before)]
        known = [key + value for key, values in ways.items() if key not in given for value in values]
        known += ["sample", *PACKAGED, *(flag for flag in parser().flags() if flag.startswith("--"))]
    return [one for one in known if one.startswith(word)]


def components(incomplete: str) -> list[str]:
    """Components of the running daemon."""
    return sorted({row.component for row in rows() if row.component.startswith(incomplete)})


def graphs(incomplete: str) -> list[str]:
    """Graphs that run."""
    return sorted({row.graph for row in rows() if row.graph.startswith(incomplete)})


def targets(incomplete: str) -> list[str]:
    """What `dynamo serve` can load: `graphs.agg:Frontend` for files in ./graphs and among the shipped graphs."""
    from dynamod.graph.importing import shipped_root

    found: set[str] = set()
    for root in (Path.cwd(), shipped_root()):
        for file in root.glob("graphs/*.py"):
            found |= {f"graphs.{file.stem}:{name}" for name in _LINKED.findall(file.read_text(errors="replace"))}
    return sorted(word for word in found if word.startswith(incomplete))


def configs(incomplete: str) -> list[str]:
    """YAML files here, in ./configs and among the shipped ones."""
    from dynamod.graph.importing import shipped_root

    found: set[str] = set()
    for root in (Path.cwd(), shipped_root()):
        found |= {str(file.relative_to(root)) for part in ("*.yaml", "configs/*.yaml") for file in root.glob(part)}
    return sorted(word for word in found if word.startswith(incomplete))


def models(incomplete: str) -> list[str]:
    """Models that are here."""
    from .models import known

    try:
        return [model.name for model in known() if model.name.startswith(incomplete)]
    except (OSError, ValueError):  # a cache that cannot be read
        return []


def rows() -> "list[Row]":
    """The rows of `ps` of the running daemon; none without one."""
    from dynamod.control.table import PS
    from dynamod.extension.command import NoArguments

    from .client import Control

    try:
        return Control().ask(PS, NoArguments()).value
    except Exception:  # no daemon, or one that does not answer
        return []
