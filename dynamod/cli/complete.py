"""Words for tab completion. Never fails and never waits long: no words are better than a stuck terminal."""

import re
from pathlib import Path

_LINKED = re.compile(r"^(\w+)\.link\(", re.MULTILINE)
"""A graph begins at the service whose links are written: `Frontend.link(Processor)`."""


def components(incomplete: str) -> list[str]:
    """Components of the running daemon."""
    return [name for name in _rows("component") if name.startswith(incomplete)]


def graphs(incomplete: str) -> list[str]:
    """Graphs that run."""
    return [name for name in _rows("graph") if name.startswith(incomplete)]


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


def _rows(key: str) -> list[str]:
    from .client import Control

    try:
        rows = Control().get("ps")
    except Exception:  # no daemon, or one that does not answer
        return []
    return sorted({str(row[key]) for row in rows if key in row})
