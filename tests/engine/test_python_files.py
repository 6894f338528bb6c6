"""Files of users as engines: what is known of them before they are run, and when their import does not end."""

import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.python import engine
from dynamod.message import tokens, vectors
from dynamod.message.errors import UserError
from dynamod.message.ingress import Items
from dynamod.message.worker import Chat, Embed

VECTORS = """
async def embed(request):
    if "token_ids" in request:
        for ids in request["token_ids"]:
            yield {"embeddings": [[len(ids), 0.0 if ids[0] == 7 else 1.0]]}
    elif request["input"] == "nothing":
        yield {"text": "x"}
    elif request["input"] == "zero":
        yield {"embeddings": [[0, 0]]}
    else:
        rows = [{"embedding": [3, 4]}]
        yield {"object": "list", "data": rows, "usage": {"prompt_tokens": 5, "total_tokens": 5}}
"""

MAY = [
    "async def generate(request):\n    yield 1",
    "from mine import generate",
    "from mine import other as generate",
    "from mine import *",
    "if True:\n    def generate(request): ...",
    "generate = object()",
    "class generate: ...",
    "async def embed(request): ...",
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
    with pytest.raises(UserError, match=r"mine\.py has no generate and no embed") as raised:
        engine.check({"file": str(file)}, None)
    assert "python mine.py" in raised.value.line()


async def test_an_import_that_does_not_come_back_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def generate(request): ...")

    def load(_file: Path, _argv: list[str]) -> dict[str, engine.Handler]:
        end = time.monotonic() + 20
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.01)
        return {"generate": engine.Handler(print)}

    def spawn(_work: Coroutine[Any, Any, Any], _name: str) -> None:
        raise AssertionError

    monkeypatch.setattr(engine, "SLOW", 0.05)
    monkeypatch.setattr(engine, "load", load)
    with caplog.at_level(logging.WARNING):
        await engine.PyStr(EngineOptions("m", arguments={"file": str(file)}), spawn).start()
    assert "mine.py has not come back from its import for 0.05 s" in caplog.text


async def test_a_file_that_makes_vectors_of_ids(tmp_path: Path, words: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(VECTORS)
    options = EngineOptions("m", sample.path("sample"), arguments={"file": str(file)})
    async with System() as system:
        worker = await words.House(system, engine.PyTok, options).start()
        assert worker.published[0].types == ("embeddings",)
        answer = await worker.ask(Embed("r", "m", (tokens.pack([1] * 2), tokens.pack([7])))).wait()
        [items] = [delta for delta in answer.deltas if isinstance(delta, Items)]
        assert [list(vectors.unpack(one)) for one in items.items] == [
            pytest.approx([2 / 5**0.5, 1 / 5**0.5]),
            [1.0, 0.0],
        ]
        assert answer.prompt_tokens is None, "the ingress has counted"
        assert (await worker.ask(words.generate([1])).wait()).error.message == "the file has no generate"


async def test_a_file_that_makes_vectors_of_text(tmp_path: Path, words: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(VECTORS + "\n\nasync def generate(request):\n    yield {'choices': []}\n")
    options = EngineOptions("m", arguments={"file": str(file)})
    async with System() as system:
        worker = await words.House(system, engine.PyStr, options).start()
        assert worker.published[0].types == ("chat", "embeddings")

        def ask(text: str) -> Any:
            return worker.ask(Chat("r", "m", "embedding", msgspec.json.encode({"input": text}))).wait()

        answer = await ask("x")
        [items] = [delta for delta in answer.deltas if isinstance(delta, Items)]
        assert [list(vectors.unpack(one)) for one in items.items] == [pytest.approx([0.6, 0.8])]
        assert answer.prompt_tokens == 5
        assert "a dict with embeddings, a list of lists of numbers, is needed" in (await ask("nothing")).error.message
        assert "without a direction" in (await ask("zero")).error.message
