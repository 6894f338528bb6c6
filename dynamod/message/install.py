"""How this package and its extras are installed: command lines that work for the copy that runs."""

import functools
import importlib.metadata
import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "dynamod-llm"
"""What the package is installed as: `dynamod` on PyPI is another project."""


@functools.cache
def source_folder() -> Path | None:
    """The checkout that this code runs in or was installed from; None where there is none, as for a wheel."""
    here = Path(__file__).resolve().parents[2]
    found = (folder for folder in (here, _installed_from()) if folder is not None and _is_source(folder))
    return next(found, None)


def origin() -> str:
    """What `pip install` takes for this version of the package: a path where one is known, else name and version."""
    known = source_folder() or _installed_from()
    return shlex.quote(str(known)) if known is not None else f"{DISTRIBUTION}=={_version()}"


def packages(extra: str) -> str:
    """What `pip install` takes for an extra: the checkout with the extra, else the requirements themselves."""
    folder = source_folder()
    if folder is not None:
        return f"'{folder}[{extra}]'"
    return " ".join(f"'{one}'" for one in requirements(extra)) or f"'{DISTRIBUTION}[{extra}]'"


def requirements(extra: str) -> list[str]:
    """What the extra of the installed package asks for, without conditions; empty where that is not known."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    mark = f"extra == '{extra.replace('_', '-')}'"
    halves = (line.replace('"', "'").partition(";") for line in lines)
    return [requirement.strip() for requirement, _, condition in halves if mark in condition.replace("_", "-")]


def extra_hint(name: str) -> str:
    """How an extra of this package is installed."""
    folder = source_folder()
    if folder is None:
        return f"pip install {packages(name)}"
    return f"install the extra: uv sync --extra {name} in {folder}, or pip install {packages(name)}"


def _version() -> str:
    from dynamod import __version__

    return __version__


def _is_source(folder: Path) -> bool:
    try:
        return f'name = "{DISTRIBUTION}"' in (folder / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _installed_from() -> Path | None:
    """The folder or wheel on this machine that an installer was given, while it is still there."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        parts = urlsplit(str(json.loads(text or "{}").get("url", "")))
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    path = Path(unquote(parts.path))
    return path if parts.scheme == "file" and path.exists() else None
