"""Help texts: `dynamo --help` has a short line per command in groups, flags that are on or off are pairs."""

import argparse
import contextlib
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import typer

from dynamod.cli.app import app, run
from dynamod.cli.features import add_commands
from dynamod.cli.flags import PREFILL, frontend_parser, joined, parse, parser
from dynamod.cli.overview import GROUPS, LONGEST
from dynamod.cli.run import run as dynamo_run
from dynamod.extension.installed import enabled, installed
from dynamod.extension.settings import Option, options
from dynamod.features.prefill.settings import GROUP
from dynamod.message.errors import UserError


def printed(*words: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        run(words)
    return text.getvalue()


def test_every_command_of_the_core_has_its_line() -> None:
    add_commands(app)
    root: Any = typer.main.get_command(app)
    features = {word for feature in installed().values() for word in feature.commands}
    listed = [name for lines in GROUPS.values() for name in lines]
    assert sorted(listed) == sorted({name for name, one in root.commands.items() if not one.hidden} - features)
    lines = [line for lines in GROUPS.values() for line in lines.values()]
    lines += [root.commands[word].get_short_help_str(200).rstrip(".") for word in features]
    assert [line for line in lines if len(line) > LONGEST or line.endswith(".")] == []


def test_help_shows_each_command_whole_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("--help")
    assert "..." not in text.partition("\nServe:")[2].partition("Examples:")[0]
    for title, lines in GROUPS.items():
        assert f"\n{title}:\n" in text
        for name, line in lines.items():
            assert f"  {name:<9} {line}\n" in text
    if "planner" in enabled_names():
        assert "\nMore:\n  planner " in text
    if "role_switch" in enabled_names():
        assert "\n  switch " in text.partition("\nChange components:")[2].partition("\nModels:")[0]


def enabled_names() -> set[str]:
    return {feature.name for feature in enabled()}


def leaves(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(f"{name} {word}", command)
        elif not command.hidden:
            yield f"{name} {word}", command


def test_every_command_has_an_example_of_its_own() -> None:
    add_commands(app)
    shown = {name: command.epilog or "" for name, command in leaves("dynamo", typer.main.get_command(app))}
    del shown["dynamo run"], shown["dynamo sim"]  # their help is that of dynamo-run and of the simulator
    assert [name for name, text in shown.items() if f"Examples:\n  {name}" not in text] == []


def test_flags_of_dynamo_run_are_in_groups() -> None:
    groups = {group.title: group._group_actions for group in parser()._action_groups}
    some = {"server", "calls of tools", "keys and TLS", "router and migration", PREFILL, "model", "engine", "options"}
    assert some <= {*groups}
    assert max(len(actions) for actions in groups.values()) <= 16
    assert GROUP == PREFILL
    text = parser().format_help()
    assert text.index("\nserver:") < text.index("\nmodel:") < text.index("\noptions:") < text.index("\nexamples:")


def test_dynamo_run_alone_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert dynamo_run([]) == 0
    out = capsys.readouterr().out
    assert "in=http" in out
    assert "dynamo-run --help" in out
    assert "--router-mode MODE" not in out


def pairs(found: argparse.ArgumentParser) -> dict[str, str]:
    return {
        one.option_strings[0]: one.help or ""
        for one in found._actions
        if isinstance(one, argparse.BooleanOptionalAction)
    }


@pytest.mark.parametrize("make", [parser, frontend_parser])
def test_no_flag_wants_the_word_true(make: Any) -> None:
    assert not [one.option_strings for one in make()._actions if one.metavar == "BOOL"]
    assert not [flag for flag, text in pairs(make()).items() if "(default: o" not in text]


def test_the_default_that_is_shown_is_the_default() -> None:
    shown = pairs(parser())
    fields = (field for feature in installed().values() for struct in feature.settings.values()
              for field in msgspec.structs.fields(struct))  # fmt: skip
    found = {field.name: field.default for field in fields if field.default in (True, False)}
    bools = [name for name, option in options().items() if isinstance(option, Option) and option.metavar == "BOOL"]
    assert bools
    for name in bools:
        word = "on" if found[name] else "off"
        assert f"(default: {word})" in shown[f"--{name.replace('_', '-')}"], name


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--remote-prefill"], True),
        (["--no-remote-prefill"], False),
        (["--remote-prefill", "false"], False),
        (["--remote-prefill=true"], True),
        ([], None),
    ],
)
def test_both_forms_and_the_old_ones(words: list[str], value: bool | None) -> None:
    found = parse(["in=http", "out=echo_core", *words, "a-model"])
    assert (found.flags.remote_prefill, found.model) == (value, "a-model")


def test_a_pair_with_another_value_is_refused() -> None:
    with pytest.raises(UserError, match="--use-kv-events: 'maybe' is neither true nor false"):
        joined(["--use-kv-events=maybe"])
