import io
import sys

import pytest

from dynamod.observe import progress
from dynamod.observe.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    line = ProgressLine()
    for text in ("one", "one", "two", ""):
        line.show(text)
    line.end("interrupted")  # there is none
    assert out.getvalue() == "\r\x1b[Kone\r\r\x1b[Ktwo\r\r\x1b[K"
    line.show("three")
    line.end("interrupted")
    assert out.getvalue().endswith("\r\x1b[Kthree; interrupted\n")


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    line = ProgressLine()
    for now in (0.0, 0.5, 9.5, 10.0, 12.0):
        line.show(f"at {now:g}")
    assert capsys.readouterr().err == "at 0\nat 10\n"
    line.end()
    line.end("interrupted")
    assert capsys.readouterr().err == ""


def test_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    ProgressLine().show("text")
