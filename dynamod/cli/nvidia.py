"""Command lines and variables of NVIDIA Dynamo 1.6.1, in the words of this release.

`nvidia_dynamo.tsv` is the table. Columns: names of a flag, the modules that have it (a letter each, see MODULES),
values (`1`, `?` one or none, `*` several, `switch`, `pair` with a `--no-` form), variables, what it is here, note.

Here: `=` the same flag; `--NAME` another flag with the same value; `--NAME=VALUE` for a switch; `--NAME OLD:NEW` with
another value; `namespace` the first part of the worker's address; `variable` the variable does it; `interactive` the
same with --interactive only; `-` nothing, and the note says why.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

MODULES = {
    "dynamo.frontend": "f",
    "dynamo.mocker": "m",
    "dynamo.vllm": "v",
    "dynamo.sglang": "s",
    "dynamo.sglang.worker": "s",
    "dynamo.trtllm": "t",
}
"""The letter of each module in the table."""
OWN = "DYN_"
NAMESPACE, VARIABLE, INTERACTIVE = "namespace", "variable", "interactive"
TRUE, FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class Entry(NamedTuple):
    """A row of the table."""

    names: tuple[str, ...]
    modules: str
    values: str
    variables: tuple[str, ...]
    here: str
    note: str


@cache
def table() -> tuple[Entry, ...]:
    """All rows."""
    text = files("dynamod.cli").joinpath("nvidia_dynamo.tsv").read_text(encoding="utf-8")
    return tuple(_entry(line) for line in text.splitlines() if not line.startswith("#"))


def _entry(line: str) -> Entry:
    names, modules, values, variables, here, note = ["" if word == "-" else word for word in line.split("\t")]
    return Entry(tuple(names.split()), modules, values, tuple(variables.split()), here, note)


def accepted(
    module: str,
    words: Sequence[str],
    known: Collection[str],
    environ: MutableMapping[str, str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[str]:
    """The words of `python -m MODULE` for the parser of this release, which knows the flags `known`.

    A flag or variable of the table that has no effect is told in one line. Flags outside the table stay as they are.
    """
    env = os.environ if environ is None else environ
    reader = _Reader(MODULES.get(module, ""), known, env, tell or _to_stderr)
    return reader.read(words)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class _Reader:
    """Rewrites one command line."""

    def __init__(
        self, letter: str, known: Collection[str], env: MutableMapping[str, str], tell: Callable[[str], None]
    ) -> None:
        rows = [row for row in table() if letter and letter in row.modules]
        self._rows = {name: row for row in rows for name in row.names}
        self._variables = {name: row for row in rows for name in row.variables}
        self._known, self._env, self._tell = known, env, tell
        self._given: set[Entry] = set()
        self._interactive = False

    def read(self, words: Sequence[str]) -> list[str]:
        """The words, then flags for variables."""
        self._interactive = bool({"-i", "--interactive"} & {*words})
        rest, found = list(words), list[str]()
        while rest:
            found += self._word(rest.pop(0), rest)
        return [*found, *self._of_variables()]

    def _word(self, word: str, rest: list[str]) -> list[str]:
        name, sign, value = word.partition("=")
        flag = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name
        row, off = self._rows.get(flag), False
        if row is None and flag.startswith("--no-"):
            row = self._rows.get(f"--{flag[5:]}")
            off = row is not None and row.values == "pair"
            row = row if off else None
        if row is None:
            return [word]
        self._given.add(row)
        values = [value] if sign else _values(row.values, rest)
        if not self._acts(row):
            self._tell(f"{flag} has no effect here: {row.note}")
            return []
        return self._typed(row, flag, values, off=off)

    def _acts(self, row: Entry) -> bool:
        return self._interactive if row.here == INTERACTIVE else bool(row.here)

    def _typed(self, row: Entry, flag: str, values: list[str], *, off: bool) -> list[str]:
        if row.here == VARIABLE:
            for variable in row.variables:
                self._env[variable] = values[0] if values else "true"
            return []
        if row.here == NAMESPACE:
            return [f"--{NAMESPACE}={values[0]}"] if values else [f"--{NAMESPACE}"]
        if row.here in ("=", INTERACTIVE):
            if off:
                return [flag]
            return [flag, *values] if len(values) != 1 else [f"{flag}={values[0]}"]
        target, _, change = row.here.partition(" ")
        if "=" in target:
            return [target]
        if off:
            return [f"--no-{target[2:]}"]
        old, _, new = change.partition(":")
        return [f"{target}={new if old and one == old else one}" for one in values[:1]] or [target]

    def _of_variables(self) -> Iterator[str]:
        named = {name: row for row in table() for name in row.variables if not row.names}
        for variable in sorted(name for name in self._env if name.startswith(OWN)):
            text, row = self._env[variable], self._variables.get(variable) or named.get(variable)
            if row is None or row.here == VARIABLE or row in self._given:
                continue
            if not self._acts(row):
                self._tell(f"{variable} has no effect here: {row.note}")
            elif row.names and not _is_read(variable):
                yield from self._of_variable(row, text)

    def _of_variable(self, row: Entry, text: str) -> list[str]:
        flag = next(name for name in row.names if name.startswith("--"))
        if row.values in ("pair", "switch"):
            if text.strip().lower() in FALSE:
                return self._typed(row, f"--no-{flag[2:]}", [], off=True) if row.values == "pair" else []
            return self._typed(row, flag, [], off=False)
        return self._typed(row, flag, [text], off=False)


def _is_read(variable: str) -> bool:
    """Whether settings of this release read the variable on their own."""
    from dynamod.extension.settings import options
    from dynamod.http.settings import VARIABLES

    added = {option.variable for option in options().values()}
    return variable in VARIABLES or variable in added or variable.startswith("DYN_MIGRATION_")


def _values(kind: str, rest: list[str]) -> list[str]:
    """Take the values of a flag from the words that follow it."""
    if kind == "1":
        return [rest.pop(0)] if rest else []
    found: list[str] = []
    while kind in ("?", "*") and rest and not rest[0].startswith("-"):
        found.append(rest.pop(0))
        if kind == "?":
            break
    return found
