"""`python -m tools.manual`: write the generated pages and pictures of the manual; `--check` only compares."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from . import (
    api,
    chart,
    commands,
    config,
    control,
    diagrams,
    environment,
    events,
    metrics,
    nvidia,
    pictures,
    python,
    recording,
)
from .svg import both

FOLDER = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/dynamo.md": commands.dynamo,
    "reference/dynamo-run.md": commands.dynamo_run,
    "reference/dynamod.md": commands.dynamod,
    "reference/config.md": config.config,
    "reference/http.md": api.http,
    "reference/control.md": control.control,
    "reference/errors.md": api.errors,
    "reference/features.md": api.features,
    "reference/metrics.md": metrics.metrics,
    "reference/environment.md": environment.environment,
    "reference/nvidia-dynamo.md": nvidia.nvidia,
    "reference/events.md": events.events,
    "reference/python.md": python.python,
    **both("beside-dynamo", chart.draw),
    **both("gateways", chart.gateways),
    **both("architecture", diagrams.architecture),
    **both("request", diagrams.request),
    **both("packages", diagrams.packages),
    **both("kill", pictures.kill),
    **both("router", pictures.router),
    **both("prefill-decode", pictures.prefill),
    **both("tiers", pictures.tiers),
    "images/kill.svg": recording.recording,
}
"""The generated files, below `docs/`."""


def main() -> int:
    """Returns the exit code: 1 when `--check` finds a file that differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.manual", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that differ")
    check = parser.parse_args().check
    stale = []
    for name, make in PAGES.items():
        text, file = make(), FOLDER / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    print("\n".join(stale) if stale else "all files are up to date")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
