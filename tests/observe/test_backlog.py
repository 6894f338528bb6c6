"""Lines that wait for a thread."""

import threading

import pytest

from dynamod.observe import backlog
from dynamod.observe.backlog import Backlog


def test_without_a_thread_lines_wait_and_nobody_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter, or at the limit of threads, none can be started."""
    written: list[tuple[str, int]] = []
    lines = Backlog[None](lambda _target, text, dropped: written.append((text, dropped)), limit=10)

    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for text in ("first", "secnd", "too much"):
            lines.put(None, text)
    assert written == []
    assert not lines.idle
    lines.put(None, "")
    lines.flush(5)
    assert [text for text, _ in written] == ["first", "secnd", ""]
    assert sum(dropped for _, dropped in written) == 1
    assert lines.idle


def test_the_thread_ends_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "LINGER", 0.01)
    written: list[str] = []
    lines = Backlog[None](lambda _target, text, _dropped: written.append(text))
    for text in ("a", "b"):
        lines.put(None, text)
        lines.flush(5)
        thread = lines._thread
        if thread is not None:
            thread.join(5)
        assert lines._thread is None
    assert written == ["a", "b"]


def test_texts_for_one_target_are_written_together() -> None:
    """Up to the size of a piece; a text above it is a piece of its own."""
    written: list[tuple[str, str]] = []
    busy, goes_on = threading.Event(), threading.Event()

    def write(target: str, text: str, _dropped: int) -> None:
        busy.set()
        goes_on.wait(10)
        written.append((target, text))

    lines = Backlog(write, piece=4)
    lines.put("a", "0")
    assert busy.wait(10)
    for target, text in (("a", "1"), ("a", "23"), ("a", "45"), ("b", "6"), ("a", "7"), ("a", "long text"), ("a", "8")):
        lines.put(target, text)
    goes_on.set()
    lines.flush(5)
    assert written == [("a", "0"), ("a", "123"), ("a", "45"), ("b", "6"), ("a", "7"), ("a", "long text"), ("a", "8")]
    assert lines.idle
