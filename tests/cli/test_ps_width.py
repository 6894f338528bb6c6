"""How wide `dynamo ps` is: as the terminal, in a pipe as COLUMNS says, else as wide as it needs."""

import pytest

from dynamod.cli.show import show

ROW = {
    "graph": "agg",
    "component": "Worker",
    "process": "agg/Worker.0",
    "state": "Ready",
    "pid": 1234567,
    "uptime": 5.0,
    "restarts": 0,
    "last_error": "a long reason " * 5,
    "models": ["sample", "two", "three", "four"],
    "session": "dynamo serve pid 12345",
}


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    show("ps", [ROW, {**ROW, "session": "dynamo serve pid 2"}], "text")
    return capsys.readouterr().out


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = shown(capsys)
    assert "sample, two, three and 1 more" in whole
    monkeypatch.setenv("COLUMNS", "100")
    narrow = shown(capsys)
    assert max(map(len, whole.splitlines())) > 100 >= max(map(len, narrow.splitlines()))
    for wrong in ("wide", "-5", ""):
        monkeypatch.setenv("COLUMNS", wrong)
        assert shown(capsys) == whole
