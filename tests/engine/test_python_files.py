"""Files of users as engines: what is known of them before they are run, and when their import does not end."""

import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from dynamod.engine.base import EngineOptions
from dynamod.engine.python import engine
from dynamod.message.errors import UserError

MAY = [
    "async def generate(request):\n    yield 1",
    "from mine import generate",
    "from mine import other as generate",
    "from mine import *",
    "if True:\n    def generate(request): ...",
    "generate = object()",
    "class generate: ...",
    "globals()['gen' + 'erate'] = 1",
    "def make():\n    global generate\n    generate = 1\nmake()",
]
MAY_NOT = ["", "class A:\n    def generate(self): ...", "def f():\n    def generate(): ...", "import generated"]


@pytest.mark.parametrize("text", MAY + MAY_NOT)
def test_a_file_without_generate_is_known_before_it_is_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    if text in MAY:
        engine.check({"file": str(file)}, None)
        return
    with pytest.raises(UserError, match=r"mine\.py has no generate") as raised:
        engine.check({"file": str(file)}, None)
    assert "python mine.py" in raised.value.line()


async def test_an_import_that_does_not_come_back_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def generate(request): ...")

    def load(_file: Path, _argv: list[str]) -> engine.Handler:
        end = time.monotonic() + 20
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.01)
        return engine.Handler(print)

    def spawn(_work: Coroutine[Any, Any, Any], _name: str) -> None:
        raise AssertionError

    monkeypatch.setattr(engine, "SLOW", 0.05)
    monkeypatch.setattr(engine, "load", load)
    with caplog.at_level(logging.WARNING):
        await engine.PyStr(EngineOptions("m", arguments={"file": str(file)}), spawn).start()
    assert "mine.py has not come back from its import for 0.05 s" in caplog.text
