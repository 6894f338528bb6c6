"""The commands in a folder of documents, to hold the table of `seeds.py` against them. Not a test."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

COMMAND = re.compile(
    r"(?<![\w./-])(?:[A-Z_]+=\S+ )?(?:sudo )?(?:\./)?(?:dynamo-run (?!to )|dynamo (?:run|serve) "
    r"|python3? -m (?:dynamo|sglang)\.|curl |ray (?:start|stop)|docker (?:compose|run) |nats-server |huggingface-cli )"
)
BUILDS = ("sh.rustup.rs", "astral.sh", "Homebrew", "apt-get")
"""What installs NVIDIA Dynamo's tools or builds NVIDIA Dynamo."""


def commands(folder: Path) -> dict[str, str]:
    """Commands of all documents, normalised, and where each stands first: `NAME:LINE`. Builds are left out."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.txt")):
        for number, line in joined(file.read_text(encoding="utf-8")):
            for command in () if any(word in line for word in BUILDS) else commands_in(line):
                found.setdefault(command, f"{file.name.partition('_')[0]}:{number}")
    return found


def joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; those that end in `\\`, or inside a quoted JSON body, with what follows."""
    whole, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        whole, first = (f"{whole} {line.strip()}", first) if whole else (line.strip(), number)
        if whole.endswith("\\"):
            whole = whole[:-1].rstrip()
        elif not ("-d '{" in whole and whole.count("'") % 2):
            yield first, whole
            whole = ""
    if whole:
        yield first, whole


def commands_in(line: str) -> Iterator[str]:
    """The commands of one line, normalised. A code span ends where it is closed, and a sentence is no part of it."""
    for match in COMMAND.finditer(line):
        rest = line[match.start() :]
        end = rest.find("`")
        yield normal(rest[:end] if end >= 0 else rest)


def normal(command: str) -> str:
    """Without prompt, comment, place of the program, and differences of spaces."""
    command = re.sub(r"\s+#\s.*$", "", command.strip())
    command = re.sub(r"\s+", " ", command.removeprefix("sudo ").removeprefix("./"))
    return re.sub(r"(?<=[{[]) | (?=[}\]])", "", command).removesuffix(" | jq").rstrip(" .")


def unknown(folder: Path, lines: Iterable[str]) -> dict[str, str]:
    """Commands of the documents that no line of the table is, with where they stand."""
    known = {normal(part) for line in lines for part in (line, line.partition(" | ")[2] or line)}
    return {command: place for command, place in commands(folder).items() if command not in known}
