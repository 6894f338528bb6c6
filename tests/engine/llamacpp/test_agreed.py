"""A check of a tokenizer that was passed is not made again while model, tokenizer and llama.cpp stay the same."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.engine.llamacpp.agreed import Agreement
from dynamod.engine.llamacpp.vocabulary import Vocabulary
from dynamod.message.discovery import ModelCard

from .exchange import Engines

pytestmark = pytest.mark.engine


def test_what_a_check_holds_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, card = tmp_path / "m.gguf", ModelCard("m", mdc_sum="a")
    path.write_bytes(b"x")
    assert not Agreement(path, card).known
    Agreement(path, card).remember()
    assert Agreement(path, ModelCard("other", mdc_sum="a")).known
    assert not Agreement(path, ModelCard("m", mdc_sum="b")).known
    monkeypatch.setattr("dynamod.engine.llamacpp.agreed.version", lambda: "other")
    assert not Agreement(path, card).known
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr("dynamod.engine.llamacpp.agreed.RELEASES", ("other",))
        assert not Agreement(path, card).known
    assert Agreement(path, card).known
    os.utime(path, (1, 1))
    assert not Agreement(path, card).known
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Agreement(path, card).remember()
    assert not Agreement(path, card).known, "no folder can be made there, which is no error"


@pytest.mark.parametrize(("differs", "checks"), [(False, 1), (True, 2)])
async def test_an_engine_checks_once(
    words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: bool, checks: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compare, made = Vocabulary.compare, list[bool]()

    def counted(self: Vocabulary, reference: Any) -> bool:
        made.append(compare(self, reference))
        return made[-1] and not differs

    monkeypatch.setattr(Vocabulary, "compare", counted)
    engines = Engines(words)
    try:
        await engines.start()
        await engines.start()
    finally:
        await engines.close()
    assert made == [True] * checks
