"""Docstrings, logs and errors are written in nouns: words for nobody in particular are banned, package by package.

Documents, help texts, docstrings, comments, logs and errors are in plain English: words in a sense that only German has
are banned.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dynamod"

BANNED = re.compile(
    r"\b(who|whom|whoever|somebody|someone|nobody|anybody|everybody|those (that|who|which)|what is there)\b",
    re.IGNORECASE,
)
"""A noun says more, and a reader need not guess which one is meant."""

DONE = ("actor", "cli", "compat", "control", "daemon", "discovery", "extension", "features", "graph", "http", "ingress")
DONE += ("kvcache", "message", "migration", "observe", "parsers", "preprocess", "router", "runtime", "sdk")
DONE += ("structured", "transport", "worker", "engine")
"""Packages without such words. A package that is rewritten joins this list; none leaves it."""


@cache
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
    paths = sorted((PACKAGE / package).rglob("*.py"))
    assert paths
    assert not (mistakes := [mistake for path in paths for mistake in wrong(path)]), "\n".join(mistakes)


def test_what_the_rule_finds() -> None:
    for text in ("Nobody finds the worker.", "the workers, those that are ready", "who comes first"):
        assert BANNED.search(text), text
    for text in ("a whole answer", "the worker whose link failed", "those workers"):
        assert not BANNED.search(text), text


TRANSLATED = {
    "behind": "after, for, with",
    "beside": "next to, alongside, in addition to, together with",
    "by itself": "on its own, automatically, by default",
    "by themselves": "on their own, automatically",
    "in place of": "instead of",
    "in its place": "instead",
    "in their place": "instead",
    "go on": "continue",
    "goes on": "continues",
    "going on": "continuing",
    "went on": "continued",
    "for ever": "forever, without end",
    "but for": "except",
    "the original": "NVIDIA Dynamo",
}
"""Words that a German sentence leaves in English text, with the words to use."""

LITERAL = {
    "dynamod/parsers/README.md": "| `behind.py` | `BehindReasoning`: reasoning in front of an answer",
    "dynamod/structured/README.md": "the four kinds that an answer begins with: `behind` (the",
}
"""Where such a word is a name, or meant literally: part of the line, by file."""

GERMAN = re.compile(r"\b(" + "|".join(TRANSLATED).replace(" ", r"\s+") + r")\b(?!-| model)", re.IGNORECASE)
CODE = re.compile(r"`[^`\n]*`")
"""Names of fields and of files, between backquotes in docstrings and comments."""


def documents() -> list[Path]:
    """The manual with the generated pages of flags, settings and routes, every README, and pages of the root."""
    readmes = [path for path in ROOT.rglob("README.md") if not any(part.startswith(".") for part in path.parts)]
    return [*(ROOT / "docs").rglob("*.md"), *readmes, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]


def translated(text: str, literal: str = "") -> list[str]:
    """The places with such words, each with the words to use."""
    text = text.replace(literal, "") if literal else text
    found = ((at, " ".join(at[1].lower().split())) for at in GERMAN.finditer(text))
    return [f"…{text[max(0, at.start() - 50) : at.end() + 30]}…: {TRANSLATED[words]}" for at, words in found]


def test_documents_are_in_plain_english() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {place}"
        for path in documents()
        for place in translated(path.read_text(), LITERAL.get(str(path.relative_to(ROOT)), ""))
    ]
    assert not wrong, "\n".join(wrong)


def commented(path: Path) -> list[str]:
    """The comments of a module; lines that follow each other are one text."""
    texts, last = list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            if texts and token.start[0] == last + 1:
                texts[-1] += f" {text}"
            else:
                texts.append(text)
            last = token.start[0]
    return texts


@pytest.mark.parametrize("package", DONE)
def test_code_is_in_plain_english(package: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}: {place}"
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for text in (*said(path), *commented(path))
        for place in translated(CODE.sub("NAME", text))
    ]
    assert not wrong, "\n".join(wrong)


def test_exceptions_are_still_needed() -> None:
    assert not [file for file, line in LITERAL.items() if not translated(line) or line not in (ROOT / file).read_text()]


def test_what_the_words_find() -> None:
    for text in (
        "it goes\non for ever",
        "By itself it is off",
        "the original's flags",
        "a list in place of a set",
        "beside it",
    ):
        assert translated(text), text
    for text in ("a hundred originals", "an original text", "beyond", "but four", "beside-dynamo.svg", "besides"):
        assert not translated(text), text
