"""`dynamo sim`: exit codes, what it prints, and how a failure is repeated."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dynamod.cli import sim
from dynamod.cli.app import run
from dynamod.message.errors import UserError
from dynamod.router.placement import Placement

SMALL = ["--nodes", "2", "--workers", "3", "--ingresses", "1", "--requests", "8"]


def call(argv: Sequence[str]) -> int:
    """The command as a user types it."""
    return run(["sim", *argv])


def test_seeds_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--seeds", "3", "--start", "5", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "3 seeds in" in out
    assert "0 failed" in out
    assert "result: good, no rule was broken" in out
    assert "requests: " in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--seeds", "2", "-o", "json", *SMALL, "--faults", "crash,leave"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["seeds"] == 2
    assert report["failed"] == []
    assert sum(report["requests"].values()) == 16
    assert set(report["faults"]) <= {"crash"}


def test_events_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--seed", "3", "--events", *SMALL]) == 0
    first = capsys.readouterr().out
    assert "w0.3 starts on n0" in first
    assert "digest " in first
    assert call(["--seed", "3", "--events", *SMALL]) == 0
    again = capsys.readouterr().out
    took = re.compile(r"seeds in [0-9.]+ s")
    assert took.search(first)
    assert took.sub("", again) == took.sub("", first)


def test_a_failure_is_shown_and_can_be_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Placement, "release", lambda self: None)
    assert call(["--seeds", "5", *SMALL, "--faults", "none"]) == 1
    out = capsys.readouterr().out
    assert "seed 0 FAILED: load is released" in out
    assert "VIOLATED" in out
    command = "dynamo sim --events --nodes 2 --workers 3 --ingresses 1 --requests 8 --faults=none --seed 0"
    assert f"repeat with: {command}" in out
    assert "5 failed" in out
    assert "result: bad. In 5 of the seeds a rule" in out
    assert call([*command.split()[2:], "-o", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["failed"][0]["repeat"] == command
    assert report["failed"][0]["events"]


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        (["--faults", "fire"], "unknown fault 'fire'"),
        (["--workers", "0"], "--workers is 0"),
    ],
)
def test_mistakes_say_what_to_do(argv: list[str], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong) as caught:
        call(argv)
    assert caught.value.hint


def test_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--scale", *SMALL, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["size"] == {"nodes": 2, "workers": 3, "ingresses": 1, "requests": 8}
    assert call(["--scale", *SMALL]) == 0
    assert "first_limit" in capsys.readouterr().out


def test_an_installed_package_has_no_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sim, "ROOT", tmp_path)
    with pytest.raises(UserError, match="not part of the installed package") as caught:
        call(["--seeds", "3"])
    assert "git clone" in caught.value.hint
