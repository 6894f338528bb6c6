"""The page for users of NVIDIA Dynamo: what its flags and variables mean here."""

from dynamod.cli.nvidia import INTERACTIVE, MODULES, NAMESPACE, VARIABLE, Entry, table

from .text import code, page
from .text import table as rows_of

INTRO = """\
The command lines of NVIDIA Dynamo 1.6.1 start here: each flag of `python -m dynamo.frontend`, `dynamo.mocker`,
`dynamo.vllm`, `dynamo.sglang` and `dynamo.trtllm`, and each of their `DYN_*` variables, is accepted. One line on stderr
names each flag or variable without effect. Unknown flags are refused, and no flag is abbreviated. Flags of the engine
reach the engine.

[Migrate](../how-to/migrate.md) shows the commands; [Environment](environment.md) lists all variables of dynamod."""


def nvidia() -> str:
    """The page."""
    flags = [row for row in table() if row.names]
    acting = [(_names(row), _modules(row), _variables(row), _here(row)) for row in flags if row.here]
    idle = [(_names(row), _modules(row), _variables(row), row.note) for row in flags if not row.here]
    others = [row for row in table() if not row.names]
    read = ", ".join(_variables(row) for row in others if row.here)
    unread = [(_variables(row), row.note) for row in others if not row.here]
    return page(
        "From NVIDIA Dynamo",
        INTRO,
        "## Flags with an effect",
        "Values of variables count where the flag is not given.",
        rows_of(("flag", "module", "variable", "here"), acting),
        "## Flags without effect",
        rows_of(("flag", "module", "variable", "reason"), idle),
        "## Further variables",
        f"The same here: {read}.",
        rows_of(("variable", "no effect, because"), unread),
    )


def _names(row: Entry) -> str:
    return ", ".join(map(code, row.names))


def _modules(row: Entry) -> str:
    names = {letter: module for module, letter in MODULES.items() if not module.endswith(".worker")}
    return ", ".join(names[letter].removeprefix("dynamo.") for letter in row.modules)


def _variables(row: Entry) -> str:
    return ", ".join(map(code, row.variables))


def _here(row: Entry) -> str:
    match row.here:
        case "=":
            return "the same"
        case str(here) if here == NAMESPACE:
            return "first part of the address, where `--endpoint` is not given"
        case str(here) if here == VARIABLE:
            return "as the variable"
        case str(here) if here == INTERACTIVE:
            return f"with `--interactive`; else none: {row.note}"
    flag, _, change = row.here.partition(" ")
    old, _, new = change.partition(":")
    return code(flag.replace("=", " ")) + (f", `{old}` as `{new}`" if new else "")
