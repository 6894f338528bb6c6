"""Docstrings, logs and errors are written in nouns: words for nobody in particular are banned, package by package."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dynamod"

BANNED = re.compile(
    r"\b(who|whom|whoever|somebody|someone|nobody|anybody|everybody|those (that|who|which)|what is there)\b",
    re.IGNORECASE,
)
"""A noun says more, and a reader need not guess which one is meant."""

DONE = (*("actor", "compat", "control", "daemon", "extension", "features", "migration", "sample", "structured"),)
"""Packages without such words. A package that is rewritten joins this list; none leaves it."""

LATER = ("features/planner",)
"""Folders in these packages that are still to be rewritten."""


def said(path: Path) -> list[str]:
    """Every text of a module that is longer than a name: docstrings, logs, errors."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and len(text) > 15]


def wrong(path: Path) -> list[str]:
    """The sentences with banned words."""
    found = ((text, match) for text in said(path) for match in BANNED.finditer(text))
    return [f"{path.relative_to(PACKAGE)}: …{text[max(0, at.start() - 60) : at.end() + 30]}…" for text, at in found]


@pytest.mark.parametrize("package", DONE)
def test_nouns_not_pronouns(package: str) -> None:
    later = tuple(PACKAGE / folder for folder in LATER)
    paths = [path for path in sorted((PACKAGE / package).rglob("*.py")) if not set(later) & set(path.parents)]
    assert paths
    assert not (mistakes := [mistake for path in paths for mistake in wrong(path)]), "\n".join(mistakes)


def test_what_the_rule_finds() -> None:
    for text in ("Nobody finds the worker.", "the workers, those that are ready", "who comes first"):
        assert BANNED.search(text), text
    for text in ("a whole answer", "the worker whose link failed", "those workers"):
        assert not BANNED.search(text), text
