"""A feature adds an input of `dynamo-run`: a toy that says what it is given instead of serving it."""

from typing import Any

import pytest

from dynamod.cli import flags
from dynamod.cli.flags import RunArguments, parse
from dynamod.cli.run import run, run_frontend
from dynamod.extension import installed
from dynamod.extension.feature import Feature
from dynamod.message.errors import UserError

STARTED: list[RunArguments] = []


def start(arguments: RunArguments) -> Any:
    STARTED.append(arguments)
    raise UserError(f"the parrot says {arguments.input.partition(':')[2]}")


TOY = Feature("toy", "", inputs={"parrot:WORDS": start, "text": start})


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed", lambda: {"toy": TOY})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)
    STARTED.clear()


def test_an_input_is_started_with_what_was_typed() -> None:
    assert installed.inputs() == ["parrot:WORDS", "text"]
    with pytest.raises(UserError, match="the parrot says hello"):
        run(["in=parrot:hello", "out=echo_full"])
    assert (STARTED[0].input, STARTED[0].output) == ("parrot:hello", "echo_full")
    for wrong in ("parrot", "text:hello", "stdin"):
        with pytest.raises(UserError, match=f"unknown input in={wrong}"):
            run([f"in={wrong}", "out=echo_full"])
    with pytest.raises(UserError, match=r"the parrot says $"):
        run_frontend(["--interactive"])


def test_an_input_of_a_feature_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-toy")
    with pytest.raises(UserError, match="in=parrot: belongs to the feature 'toy', which is off"):
        run(["in=parrot:hello", "out=echo_full"])
    with pytest.raises(UserError, match="in=text belongs to the feature 'toy', which is off"):
        run_frontend(["-i"])
    monkeypatch.setattr(installed, "installed", dict)
    with pytest.raises(UserError, match="--interactive needs a feature that chats, and none is installed"):
        run_frontend(["-i"])


def test_spaces_are_found_also_before_an_input_of_a_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flags._WAYS, "in=", ("http", "parrot"))
    with pytest.raises(UserError, match="`in= parrot:hello` has spaces"):
        parse(["in=", "parrot:hello"])
