"""`python -m tools.manual`: write the reference pages of the manual; `--check` only compares."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from . import api, commands, config

FOLDER = Path(__file__).parents[2] / "docs/reference"
PAGES: dict[str, Callable[[], str]] = {
    "dynamo.md": commands.dynamo,
    "dynamo-run.md": commands.dynamo_run,
    "dynamod.md": commands.dynamod,
    "config.md": config.config,
    "http.md": api.http,
    "errors.md": api.errors,
    "features.md": api.features,
}
"""The generated pages, by file."""


def main() -> int:
    """Returns the exit code: 1 when `--check` finds a page that differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.manual", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name the pages that differ")
    check = parser.parse_args().check
    stale = []
    for name, make in PAGES.items():
        text, file = make(), FOLDER / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    print("\n".join(stale) if stale else "all pages are up to date")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
