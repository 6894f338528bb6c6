"""`python -m tools.lock`: write `requirements.lock`, the versions and hashes of everything a checkout needs.

The lock file of uv names the registry that it was made with, and cannot leave that name out. Hence it is not part of
the repository, and this file is.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "requirements.lock"
EXTRAS = ("mistralrs", "demo")
"""Extras that the tests of a checkout use, besides the groups."""
EXPORT = (
    *("uv", "export", "--quiet", "--format", "requirements-txt", "--all-groups", "--no-emit-project"),
    *("--no-emit-index-url", "--no-header", "--no-annotate"),
    *(word for extra in EXTRAS for word in ("--extra", extra)),
)
HEAD = """\
# Written by `python -m tools.lock`: what a checkout of dynamod needs for its tests and its manual. Install it with:
#   uv venv && uv pip sync --require-hashes requirements.lock && uv pip install --no-deps -e .
"""
_PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==([^\s;]+)(?: ; [^\\]+)?((?: \\\n {4}--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


def main() -> int:
    """Write the file; `--upgrade` takes the newest versions that fit, otherwise those of the present uv.lock stay."""
    subprocess.run(["uv", "lock", "--quiet", *sys.argv[1:]], cwd=ROOT, check=True)
    text = HEAD + subprocess.run(EXPORT, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    pins = dict(pinned(text))
    FILE.write_text(text, encoding="utf-8")
    print(f"{FILE.name}: {len(pins)} packages")
    return 0


def pinned(text: str) -> Iterator[tuple[str, str]]:
    """Name and version of each package. Raises ValueError for text that is no pinned package with hashes."""
    rest = _PIN.sub("", text.removeprefix(HEAD)).strip()
    if rest:
        raise ValueError(f"no package with version and hashes: {rest[:200]}")
    yield from ((pin[1], pin[2]) for pin in _PIN.finditer(text))


if __name__ == "__main__":
    sys.exit(main())
