"""How answers of the daemon look: `dynamo ps` in a pipe, `dynamo status` of an older daemon."""

import pytest

from dynamod.cli.client import ControlAnswer
from dynamod.cli.show import processes, show, status
from dynamod.control.table import PS, STATUS

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
    show(ControlAnswer([ROW, {**ROW, "session": "dynamo serve pid 2"}], PS), processes, "text")
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


def test_the_status_of_an_older_daemon_says_nothing_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    graph = {"name": "agg", "ready": True, "urls": ["http://localhost:1"]}
    value = {"version": "0.2.0", "pid": 1, "node": "n", "uptime": 1.0, "socket": "s", "problems": []}
    for models, said in (({}, ""), ({"models": []}, " serves no model"), ({"models": ["a", "b"]}, " serves a, b")):
        show(ControlAnswer({**value, "graphs": [{**graph, **models}]}, STATUS), status, "text")
        assert capsys.readouterr().out.splitlines()[1] == f"  agg: ready http://localhost:1{said}"
