"""Another interpreter for a worker: environments made for the test, good ones and wrong ones."""

import os
import sys
from pathlib import Path

import pytest

from dynamod import __version__
from dynamod.engine.interpreter import missing
from dynamod.engine.names import ENGINES, require_installed
from dynamod.message.errors import UserError

from ..environments import environment

ROOT = Path(__file__).parents[2]
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
WRONG = [
    pytest.param("raise ImportError('no part of it')", "can be imported (ImportError: no part of it)", id="damaged"),
    pytest.param("__version__ = '0.0.1'", f"has dynamod 0.0.1, and this is {__version__}", id="another version"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the checkout would be found in the current folder


def refused(python: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        missing(str(python), (), CLEAN)
    assert caught.value.exit_code == 3
    line = caught.value.line()
    assert "\n" not in line
    assert f"interpreter {python} (--python, ServiceArgs.python)" in line
    return line


def test_an_environment_with_this_dynamod(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    assert missing(str(python), ("json", "not_there", "json.decoder"), CLEAN) == ["not_there"]
    require_installed("echo_core", str(python), CLEAN)


def test_an_engine_is_asked_for_where_it_shall_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "venv")
    monkeypatch.setitem(ENGINES, "mocker", ENGINES["mocker"]._replace(needs="only_there", extra="mistralrs"))
    with pytest.raises(UserError) as caught:
        require_installed("mocker", str(python), CLEAN)
    line = caught.value.line()
    assert line.startswith(f"engine 'mocker' needs the package 'only_there', which {python} (--python, Serv")
    assert line.endswith(f"; {python} -m pip install '{ROOT}[mistralrs]'")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/only_there.py").touch()
    require_installed("mocker", str(python), {**CLEAN, "PYTHONPATH": str(tmp_path / "more")})


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert "cannot be started: No such file" in refused(tmp_path / "nothere")
    assert "cannot be started: Permission denied" in refused(tmp_path / "text")
    assert "no dynamod that can be imported (exit code 1)" in refused("/bin/false")


def test_an_environment_without_dynamod(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", [])
    line = refused(python)
    assert "No module named 'dynamod'" in line
    assert line.endswith(f"; {python} -m pip install {ROOT}")


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_an_environment_with_a_wrong_dynamod(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "lib/dynamod").mkdir(parents=True)
    (tmp_path / "lib/dynamod/__init__.py").write_text(f"{text}\n")
    line = refused(environment(tmp_path / "venv", [str(tmp_path / "lib")]))
    assert says in line
    assert line.endswith(f"pip install {ROOT}")


def test_what_dynamod_needs_must_be_there_too(tmp_path: Path) -> None:
    root = next(path for path in sys.path if (Path(path) / "dynamod").is_dir())
    assert "No module named '" in refused(environment(tmp_path / "venv", [root]))
